#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
umount -l /var/cache/inc-full
