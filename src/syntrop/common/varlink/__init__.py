# SPDX-License-Identifier: Apache-2.0
"""Varlink on the suite's own loop: the `varlink` package reads the definitions, the transport is ours."""
