# SPDX-License-Identifier: Apache-2.0
"""Providers elsewhere, one module a kind, each with `create(config, secret)`; imported when first asked."""
