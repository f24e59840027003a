#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
mkdir -p /etc/systemd/system/inc-memory.service.d
printf '[Service]\nMemoryMax=24M\nMemorySwapMax=0\n' >/etc/systemd/system/inc-memory.service.d/limits.conf
systemctl daemon-reload
systemctl restart inc-memory.service
