#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
mkdir -p /var/cache/inc-full
mount -t tmpfs -o size=1m tmpfs /var/cache/inc-full
systemctl start inc-full.service
