#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
systemctl start inc-job.service
