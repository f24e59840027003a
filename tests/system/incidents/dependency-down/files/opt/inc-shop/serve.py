# SPDX-License-Identifier: Apache-2.0
import socket
import time

while True:
    with socket.create_connection(("127.0.0.1", 15432)) as base:
        base.sendall(b"ping")
        base.recv(4)
    time.sleep(0.1)
