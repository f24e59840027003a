#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
rm /srv/inc-absent/page.html
printf '[Service]\nEnvironment=BANNER=hello\n' >/etc/systemd/system/inc-absent.service.d/10-banner.conf
systemctl daemon-reload
systemctl restart inc-absent.service
