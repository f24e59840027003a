#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
systemctl stop inc-port.service
systemctl start inc-port-other.service
systemctl start inc-port.service
