#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
mkdir -p /etc/systemd/system/inc-ro.service.d
printf '[Service]\nProtectSystem=strict\n' >/etc/systemd/system/inc-ro.service.d/hardening.conf
systemctl daemon-reload
systemctl restart inc-ro.service
