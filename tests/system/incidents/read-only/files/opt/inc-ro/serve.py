# SPDX-License-Identifier: Apache-2.0
import os
import time

os.makedirs("/var/lib/inc-ro", exist_ok=True)
with open("/var/lib/inc-ro/journal", "a") as file:
    file.write("started\n")
time.sleep(1 << 30)
