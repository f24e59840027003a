#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
sed -i 's/8/0/' /etc/inc-pool/pool.conf
systemctl restart inc-pool.service
