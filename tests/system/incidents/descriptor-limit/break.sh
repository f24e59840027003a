#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
mkdir -p /etc/systemd/system/inc-files.service.d
printf '[Service]\nLimitNOFILE=64\n' >/etc/systemd/system/inc-files.service.d/limits.conf
systemctl daemon-reload
systemctl restart inc-files.service
