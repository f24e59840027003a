# SPDX-License-Identifier: Apache-2.0
import sys
import time

with open(sys.argv[1]) as file:
    settings = dict(line.split() for line in file)
if int(settings["pool_size"]) < 1:
    sys.exit(f"pool_size must be a positive number, got {settings['pool_size']}")
print("a pool of", settings["pool_size"])
time.sleep(1 << 30)
