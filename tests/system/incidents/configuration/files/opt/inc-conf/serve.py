# SPDX-License-Identifier: Apache-2.0
import sys
import time
import tomllib

with open(sys.argv[1], "rb") as file:
    try:
        settings = tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        sys.exit(f"configuration error in {sys.argv[1]}: {error}")
print("serving with", settings["workers"], "workers")
time.sleep(1 << 30)
