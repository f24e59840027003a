#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
mkdir -p /var/lib/inc-flap
touch /var/lib/inc-flap/torn
