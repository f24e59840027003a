#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
printf 'port = 8080\nworkers = = lots\n' >/etc/inc-conf/app.toml
systemctl restart inc-conf.service
