#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
printf '{"port": 8080, "workers": 4,,}\n' >/etc/inc-conf2/app.json
systemctl restart inc-conf2.service
