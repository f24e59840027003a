#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
sed -i 's/4096/64/' /etc/systemd/system/inc-edited.service.d/local.conf
systemctl daemon-reload
systemctl restart inc-edited.service
