#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
printf '[Service]\nEnvironment=LEVEL=2\n' >/etc/systemd/system/inc-inject.service.d/10-nice.conf
systemctl daemon-reload
systemctl stop inc-inject.service
systemctl start inc-inject-other.service
systemctl start inc-inject.service
