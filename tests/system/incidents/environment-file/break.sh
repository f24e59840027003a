#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
mkdir -p /etc/systemd/system/inc-env.service.d
printf '[Service]\nEnvironmentFile=/etc/default/inc-envv\n' >/etc/systemd/system/inc-env.service.d/env.conf
systemctl daemon-reload
systemctl restart inc-env.service || true
