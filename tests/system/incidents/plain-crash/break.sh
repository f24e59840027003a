#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
kill -SEGV "$(systemctl show --value -p MainPID inc-crash.service)"
