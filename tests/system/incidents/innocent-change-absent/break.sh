#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
rm /srv/inc-absent/page.html
printf '[Service]\nNice=2\n' >/etc/systemd/system/inc-absent.service.d/10-nice.conf
systemctl daemon-reload
systemctl restart inc-absent.service
