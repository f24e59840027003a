#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
head -c 2M /dev/zero >/var/cache/inc-full/thumbnails 2>/dev/null || true
systemctl restart inc-full.service
