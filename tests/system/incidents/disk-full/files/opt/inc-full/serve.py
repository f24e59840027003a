# SPDX-License-Identifier: Apache-2.0
import os
import time

with open("/var/cache/inc-full/scratch", "wb", buffering=0) as file:
    if file.write(b"s" * 65536) < 65536:
        file.write(b"s")
os.unlink("/var/cache/inc-full/scratch")
print("sorted")
time.sleep(1 << 30)
