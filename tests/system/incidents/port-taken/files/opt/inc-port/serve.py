# SPDX-License-Identifier: Apache-2.0
import os
import socket
import time

listener = socket.create_server(("127.0.0.1", 18080))
print("listening on", listener.getsockname())
if path := os.environ.get("NOTIFY_SOCKET"):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(b"READY=1", path)
time.sleep(1 << 30)
