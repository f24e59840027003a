#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
printf '[Service]\nExecStart=\nExecStart=/usr/bin/sleeep infinity\n' >/etc/systemd/system/inc-clock.service.d/50-run.conf
touch -d 1986-02-09 /etc/systemd/system/inc-clock.service.d/50-run.conf
systemctl daemon-reload
systemctl restart inc-clock.service || true
