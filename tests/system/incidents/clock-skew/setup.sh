#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
touch -d 2061-07-28 /etc/systemd/system/inc-clock.service.d/10-nice.conf
systemctl daemon-reload
systemctl start inc-clock.service
