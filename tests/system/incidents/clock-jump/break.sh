#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
mkdir -p /etc/systemd/system/inc-jump.service.d
printf '[Service]\nLimitNOFILE=64\n' >/etc/systemd/system/inc-jump.service.d/limits.conf
systemctl daemon-reload
systemctl restart inc-jump.service
until journalctl -q -o cat -u inc-jump.service _SYSTEMD_INVOCATION_ID="$(systemctl show --value -p InvocationID inc-jump.service)" | grep -q waiting; do sleep 0.2; done
date -s '1 hour ago' >/dev/null
touch /run/inc-jump
