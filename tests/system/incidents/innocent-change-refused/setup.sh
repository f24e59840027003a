#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
systemd-run -q --unit=inc-refused-ledger --service-type=exec python3 -c 'import socket, time
listener = socket.create_server(("127.0.0.1", 15433)); time.sleep(1 << 30)'
until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 15433))' 2>/dev/null; do sleep 0.05; done
systemctl start inc-refused.service
