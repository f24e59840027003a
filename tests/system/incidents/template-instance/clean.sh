#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
systemctl stop inc-tmpl@b.service
