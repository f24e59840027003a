# SPDX-License-Identifier: Apache-2.0
"""Thresholds that no machine reaches: whatever else it does, inferenced refuses nobody for its pressure.

What is done at critical pressure, at the thresholds as they are shipped, is tested with a pressure of the tests'
own: `integration/test_runtimed_leases.py`, `unit/inferenced/test_pressing.py`.
"""

CALM = "[tuning]\ncritical_memory = 100.0\ncritical_memory_full = 100.0\ncritical_io = 100.0\n"
