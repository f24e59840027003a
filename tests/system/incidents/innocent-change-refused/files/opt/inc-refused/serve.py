# SPDX-License-Identifier: Apache-2.0
import socket
import sys
import time

try:
    ledger = socket.create_connection(("127.0.0.1", 15433))
except OSError as error:
    sys.exit(f"could not connect to the ledger at 127.0.0.1:15433: {error.strerror}")
print("connected to the ledger")
time.sleep(1 << 30)
