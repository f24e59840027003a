#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
mkdir -p /etc/systemd/system/inc-tmpl@a.service.d
printf '[Service]\nExecStart=\nExecStart=/usr/bin/sleeep %%i\n' >/etc/systemd/system/inc-tmpl@a.service.d/50-run.conf
systemctl daemon-reload
systemctl restart inc-tmpl@a.service || true
