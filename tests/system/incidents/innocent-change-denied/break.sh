#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
chmod 600 /srv/inc-denied/meter
printf '[Service]\nNice=2\n' >/etc/systemd/system/inc-denied.service.d/10-nice.conf
systemctl daemon-reload
systemctl restart inc-denied.service
