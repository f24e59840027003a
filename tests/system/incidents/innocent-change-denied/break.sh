#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
chmod 600 /srv/inc-denied/line
printf '[Service]\nEnvironment=BANNER=hello\n' >/etc/systemd/system/inc-denied.service.d/10-banner.conf
systemctl daemon-reload
systemctl restart inc-denied.service
