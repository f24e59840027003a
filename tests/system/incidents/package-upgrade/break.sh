#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
dpkg -i /opt/inc-pack/1.1-1.deb >/dev/null
systemctl restart inc-pack.service
