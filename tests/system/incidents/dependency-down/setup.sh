#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
systemctl start inc-base.service
until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 15432))' 2>/dev/null; do sleep 0.05; done
systemctl start inc-shop.service
