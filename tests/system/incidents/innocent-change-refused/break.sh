#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
systemctl stop inc-refused-ledger.service
printf '[Service]\nNice=2\n' >/etc/systemd/system/inc-refused.service.d/10-nice.conf
systemctl daemon-reload
systemctl restart inc-refused.service
