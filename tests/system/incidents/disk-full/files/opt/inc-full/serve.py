# SPDX-License-Identifier: Apache-2.0
import time

with open("/var/cache/inc-full/index", "wb", buffering=0) as file:
    if file.write(b"i" * 65536) < 65536:
        file.write(b"i")
print("indexed")
time.sleep(1 << 30)
