#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
chmod 600 /etc/inc-owner/peers.conf
systemctl restart inc-owner.service
