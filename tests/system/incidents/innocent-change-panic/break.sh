#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
until journalctl -q -o cat -u inc-panic.service | grep -q serving; do sleep 0.05; done
printf 'workers 4\ngreeting welcome\n' >/etc/inc-panic/app.conf
kill -USR1 "$(systemctl show --value -p MainPID inc-panic.service)"
