#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
printf '[Servce]\nExecStart /usr/bin/sleep infinity\n' >/etc/systemd/system/inc-unitfile.service
systemctl daemon-reload
kill -SEGV "$(systemctl show --value -p MainPID inc-unitfile.service)"
