#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
until journalctl -q -o cat -u inc-early.service | grep -q serving; do sleep 0.05; done
kill -USR1 "$(systemctl show --value -p MainPID inc-early.service)"
