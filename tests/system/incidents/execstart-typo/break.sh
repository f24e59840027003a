#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
mkdir -p /etc/systemd/system/inc-typo.service.d
printf '[Service]\nExecStart=\nExecStart=/usr/bin/sleeep infinity\n' >/etc/systemd/system/inc-typo.service.d/50-run.conf
systemctl daemon-reload
systemctl restart inc-typo.service || true
