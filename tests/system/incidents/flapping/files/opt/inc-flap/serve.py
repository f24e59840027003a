# SPDX-License-Identifier: Apache-2.0
import os
import sys
import time

while not os.path.exists("/var/lib/inc-flap/torn"):
    time.sleep(0.05)
sys.exit("panic: page 17 of the ledger does not match its sum")
