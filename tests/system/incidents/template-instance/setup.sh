#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
systemctl start inc-tmpl@a.service inc-tmpl@b.service
