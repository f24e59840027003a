# SPDX-License-Identifier: Apache-2.0
import sys
import time

try:
    with open("/srv/inc-denied/line", "rb") as line:
        line.read(4)
except OSError as error:
    sys.exit(f"could not open the serial line: {error.strerror}")
print("reading the line")
time.sleep(1 << 30)
