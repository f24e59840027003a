# SPDX-License-Identifier: Apache-2.0
"""The journal's identifiers of what systemd-sentry tells operators. The catalog (units/catalog) explains each."""

from __future__ import annotations

REPORTED = "b5a7d1c0e94f4d2f8f6d3c9a1e70b284"  # looked into, and nothing done
STAGED = "2f0c4b8be6d94f0a9f0f55b2a7c1d3e6"  # an action waits for a person
RECOVERED = "8c5e3d7a41f24b6c9d1e60a7f3b25c48"  # an action helped
ESCALATED = "d41f7a6c95b84e2fa3c08e5d71b694f2"  # an action did not help: a person is needed
DISMISSED = "61b0e9d3f7c24a58b2d4c6a81e3f5079"  # it recovered by itself, or somebody wanted it so
LOCKED = "f95c2a1e8d704b36a7e3d0c4b816f52d"  # nothing more is done until an operator resets the breaker
