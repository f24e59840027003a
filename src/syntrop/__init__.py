# SPDX-License-Identifier: Apache-2.0
"""Local AI as a native part of a Linux host."""

__version__ = "0.1.0"
