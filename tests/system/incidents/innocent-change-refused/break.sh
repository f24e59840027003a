#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
systemctl stop inc-refused-ledger.service
printf '[Service]\nEnvironment=BANNER=hello\n' >/etc/systemd/system/inc-refused.service.d/10-banner.conf
systemctl daemon-reload
systemctl restart inc-refused.service
