#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
sed -i 's/512M/24M/' /etc/systemd/system/inc-edited-memory.service.d/10-limits.conf
systemctl daemon-reload
systemctl restart inc-edited-memory.service
