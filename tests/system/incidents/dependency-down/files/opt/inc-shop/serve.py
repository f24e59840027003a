# SPDX-License-Identifier: Apache-2.0
import socket
import time

while True:
    with socket.create_connection(("127.0.0.1", 15432)) as base:
        try:
            base.sendall(b"ping")
            base.recv(4)
        except ConnectionError:
            print("the base broke off, trying again")
    time.sleep(0.1)
