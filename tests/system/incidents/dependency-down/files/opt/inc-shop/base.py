# SPDX-License-Identifier: Apache-2.0
import os
import socket
import sys

if os.path.exists("/var/lib/inc-base/torn"):
    sys.exit("page 17 of the ledger does not match its sum")
listener = socket.create_server(("127.0.0.1", 15432))
while True:
    peer, _ = listener.accept()
    with peer:
        peer.recv(4)
        peer.sendall(b"pong")
