# SPDX-License-Identifier: Apache-2.0
"""Settings of inferenced."""

from __future__ import annotations

from syntrop.common.settings import Setting

_MIB = 1 << 20

TABLE: tuple[Setting, ...] = (
    Setting("yield_ms", int, 250, "time that holders have to give memory up before they are frozen",
            section="preemption", unit="milliseconds", minimum=0, maximum=60_000),
    Setting("freeze_ms", int, 2000, "time that freezing or thawing may take",
            section="preemption", unit="milliseconds", minimum=10, maximum=60_000),
    Setting("push_out_ms", int, 2000, "time that taking host memory from a frozen holder may take",
            section="preemption", unit="milliseconds", minimum=0, maximum=60_000),
    Setting("delegated", list, [], "control groups delegated to us, whose children are frozen without the manager",
            section="preemption"),
    Setting("slice_tiers", list, ["user.slice=Interactive", "system.slice=Batch"],
            "tiers that slices stand for, as SLICE=TIER: who opens a device in a stronger one preempts the weaker",
            section="preemption"),
    Setting("leases_max", int, 16384, "leases in all", section="leases", minimum=1, maximum=1_000_000),
    Setting("leases_max_per_uid", int, 1024, "leases that one user may hold; root and ours are not counted",
            section="leases", minimum=1, maximum=1_000_000),
    Setting("bytes_max_per_uid", int, None, "memory that one user may hold; unset: as much as there is",
            section="leases", unit="bytes", minimum=0),
    Setting("waiting_max", int, 4096, "requests that may wait for room", section="leases", minimum=0,
            maximum=100_000),
    Setting("host_reserve", int, 256 * _MIB, "host memory that is never leased", section="planes", unit="bytes",
            minimum=0),
    Setting("plane_memory", list, [], "memory of planes whose driver does not tell it, as PLANE=BYTES",
            section="planes"),
    Setting("triage_planes", list, [], "planes kept for emergencies", section="planes"),
    Setting("high_watermark", float, 0.85, "share in use from which holders are asked to spill",
            section="watermarks", minimum=0.0, maximum=1.0),
    Setting("low_watermark", float, 0.70, "share in use down to which they spill", section="watermarks",
            minimum=0.0, maximum=1.0),
    Setting("calm_watermark", float, 0.65, "share in use below which they may prefetch again",
            section="watermarks", minimum=0.0, maximum=1.0),
    Setting("calm_sec", float, 5.0, "time that this has to hold", section="watermarks", unit="seconds",
            minimum=0.0, maximum=3600.0),
    Setting("elevated_memory", float, 15.0, "share of time stalled for memory that is elevated pressure",
            section="tuning", unit="percent", minimum=0.0, maximum=100.0),
    Setting("critical_memory", float, 40.0, "the same for critical pressure, which admits emergencies only",
            section="tuning", unit="percent", minimum=0.0, maximum=100.0),
    Setting("critical_memory_full", float, 10.0, "share of time in which all tasks were stalled for memory",
            section="tuning", unit="percent", minimum=0.0, maximum=100.0),
    Setting("elevated_io", float, 20.0, "share of time stalled for io that is elevated pressure",
            section="tuning", unit="percent", minimum=0.0, maximum=100.0),
    Setting("critical_io", float, 50.0, "the same for critical pressure", section="tuning", unit="percent",
            minimum=0.0, maximum=100.0),
    Setting("elevated_cpu", float, 60.0, "share of time stalled for a processor that is elevated pressure",
            section="tuning", unit="percent", minimum=0.0, maximum=100.0),
    Setting("level_hold_sec", float, 5.0, "time for which pressure has to stay lower before its level falls",
            section="tuning", unit="seconds", minimum=0.0, maximum=3600.0),
)  # fmt: skip
