# SPDX-License-Identifier: Apache-2.0
import json
import sys
import time

with open(sys.argv[1]) as file:
    settings = json.load(file)
print("serving with", settings["workers"], "workers")
time.sleep(1 << 30)
