# SPDX-License-Identifier: Apache-2.0
"""The measure of a cold start: the least that a Python program can do to answer one Varlink call."""

import json
import selectors
import socket

listener = socket.socket(fileno=3)
connections = {}
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fd == 3:
            connection, _ = listener.accept()
            connections[connection.fileno()] = connection
            selector.register(connection, selectors.EVENT_READ)
            continue
        connection = connections[key.fd]
        data = connection.recv(65536)
        if not data:
            selector.unregister(connection)
            connections.pop(key.fd).close()
            continue
        call = json.loads(data[:-1])
        assert call["method"] == "org.varlink.service.GetInfo"
        info = {"vendor": "", "product": "echo", "version": "", "url": "", "interfaces": ["org.varlink.service"]}
        connection.sendall(json.dumps({"parameters": info}).encode() + b"\0")
