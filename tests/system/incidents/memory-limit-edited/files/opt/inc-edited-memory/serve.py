# SPDX-License-Identifier: Apache-2.0
import time

held = bytearray(64 << 20)
held[::4096] = b"x" * len(held[::4096])
print("holding", len(held), "bytes")
time.sleep(1 << 30)
