# SPDX-License-Identifier: Apache-2.0
import sys
import time

try:
    with open("/srv/inc-denied/meter", "rb") as meter:
        meter.read(4)
except OSError as error:
    sys.exit(f"the meter cannot be opened: {error.strerror}")
print("reading the meter")
time.sleep(1 << 30)
