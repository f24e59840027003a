#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
mkdir -p /var/lib/inc-base
touch /var/lib/inc-base/torn
systemctl kill -s KILL inc-base.service
