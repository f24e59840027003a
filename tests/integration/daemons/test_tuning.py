# SPDX-License-Identifier: Apache-2.0
"""inferenced re-reads its thresholds while leases are held."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import monotonic, sleep
from typing import Any

INTERFACE = "io.syntrop.Inference1."


def test_a_drop_in_retunes_while_leases_are_held(launch: Any, tmp_path: Path) -> None:
    folder = tmp_path / "inferenced" / "etc"
    folder.mkdir(parents=True)
    main = "[tuning]\nelevated_cpu = 100.0\nelevated_memory = 100.0\nelevated_io = 100.0\nlevel_hold_sec = 0.0\n"
    calm = "critical_memory = 100.0\ncritical_memory_full = 100.0\ncritical_io = 100.0\n"
    (folder / "inferenced.toml").write_text(main + calm)
    unit = launch("inferenced", idle=300.0)
    client = launch.client(unit, "io.syntrop.Inference1")
    reply = client.call(INTERFACE + "AcquireLease", priority="Batch", memory_bytes=1 << 20, plane="cpu0")
    assert reply.error is None, reply.parameters
    drop_ins = folder / "inferenced.toml.d"
    drop_ins.mkdir()
    # Any share reaches these, also none at all.
    (drop_ins / "50-tuning.toml").write_text("[tuning]\nelevated_cpu = 0.0\nelevated_memory = 0.0\n")
    os.kill(unit.process.pid, signal.SIGHUP)
    until = monotonic() + 60
    while client.call(INTERFACE + "GetPressure").parameters["level"] != "elevated":
        assert monotonic() < until
        sleep(0.05)
    assert len(client.call(INTERFACE + "ListLeases").parameters["leases"]) == 1
    # Nonsense is logged, and changes nothing.
    (drop_ins / "60-nonsense.toml").write_text("[watermarks]\nhigh_watermark = 0.1\n")
    os.kill(unit.process.pid, signal.SIGHUP)
    assert client.call(INTERFACE + "GetPressure").parameters["level"] == "elevated"
