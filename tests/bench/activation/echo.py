# SPDX-License-Identifier: Apache-2.0
"""The measure of a cold start: the least that a Python program can do to answer one Varlink call."""

import json
import selectors
import socket

listener = socket.socket(fileno=3)
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], selectors.EVENT_READ)
            continue
        data = key.fileobj.recv(65536)
        if not data:
            selector.unregister(key.fileobj)
            key.fileobj.close()
            continue
        call = json.loads(data[:-1])
        assert call["method"] == "org.varlink.service.GetInfo"
        info = {"vendor": "", "product": "echo", "version": "", "url": "", "interfaces": ["org.varlink.service"]}
        key.fileobj.sendall(json.dumps({"parameters": info}).encode() + b"\0")
