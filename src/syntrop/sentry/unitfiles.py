# SPDX-License-Identifier: Apache-2.0
"""Names of unit files, and which settings have to do with which fault. Pure."""

from __future__ import annotations

from syntrop.common.patterns import late
from syntrop.sentry import signatures as s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

TOLD_BY = "50-syntrop-triage.conf"  # sets OnFailure= for all services
_DROP_IN = late(r"/(?:etc|run)/systemd/system/(?P<owner>[^/]+)\.d/(?P<name>[^/]+\.conf)\Z")
# Settings whose change explains a class.
SETTINGS = {
    s.MEMORY_LIMIT: ("MemoryMax", "MemoryHigh", "MemoryLimit", "MemorySwapMax"),
    s.DESCRIPTOR_LIMIT: ("LimitNOFILE",),
    s.MISSING_PROGRAM: ("ExecStart", "ExecStartPre", "RootDirectory", "RootImage"),
    s.MISSING_FILE: ("EnvironmentFile", "WorkingDirectory", "ReadWritePaths", "ReadOnlyPaths", "BindPaths",
                     "BindReadOnlyPaths", "RootDirectory", "LoadCredential"),
    s.EXECUTION_CONTEXT: ("User", "Group", "LoadCredential", "SupplementaryGroups", "CapabilityBoundingSet",
                          "AmbientCapabilities", "AssertPathExists"),
    s.PERMISSION: ("User", "Group", "ProtectHome", "ProtectSystem", "UMask", "CapabilityBoundingSet",
                   "InaccessiblePaths", "NoNewPrivileges"),
    s.READ_ONLY: ("ProtectSystem", "ReadOnlyPaths", "ProtectHome"),
    s.SYSTEM_CALL: ("SystemCallFilter", "RestrictAddressFamilies", "MemoryDenyWriteExecute"),
    s.TIMEOUT: ("TimeoutStartSec", "TimeoutSec", "Type"),
    s.WATCHDOG: ("WatchdogSec", "NotifyAccess"),
    s.PROTOCOL: ("Type", "PIDFile", "NotifyAccess"),
}  # fmt: skip

# Settings that no program fails of.
HARMLESS = frozenset(
    ("Nice", "Description", "Documentation", "CPUWeight", "StartupCPUWeight", "IOWeight", "OOMScoreAdjust",
     "SyslogIdentifier", "SyslogLevel", "SyslogFacility", "LogLevelMax", "LogRateLimitBurst",
     "LogRateLimitIntervalSec", "Restart", "RestartSec", "RestartSteps", "RestartMaxDelaySec", "SuccessExitStatus",
     "StartLimitIntervalSec", "StartLimitBurst", "TimeoutStopSec", "CollectMode", "OnFailure", "OnSuccess",
     "WantedBy", "RequiredBy", "Alias", "Also")
)  # fmt: skip


# Settings of these that the manager takes while a unit runs, by toold's set_unit_property (SetUnitProperties);
# and values of theirs that it takes.
RUNTIME = frozenset(("MemoryMax", "MemoryHigh", "MemorySwapMax"))
_VALUE = late(r"[0-9]{1,15}[KMGT]?|infinity")


def template(unit: str) -> str:
    """The template of an instance (`web@a.service` → `web@.service`); the unit itself otherwise."""
    stem, _, suffix = unit.rpartition(".")
    name, at, _ = stem.partition("@")
    return f"{name}@.{suffix}" if at else unit


def drop_in(unit: str, path: str) -> str:
    """The file name of an administrator's drop-in of this unit or its template; empty where the path is none."""
    match = _DROP_IN.match(path)
    return match["name"] if match is not None and match["owner"] in (unit, template(unit)) else ""


def is_unit_file(unit: str, path: str) -> bool:
    """Whether this is an administrator's drop-in of a unit or its template, or the unit file of one of them."""
    return bool(drop_in(unit, path)) or path.rpartition("/")[2] in (unit, template(unit))


def harmless(lines: Sequence[str], *, unit_file: bool) -> bool:
    """Whether nothing can fail of these lines of a file having come or gone: comments, and for unit files settings
    that only tell how important or how loud a unit is."""
    told = [line.strip() for line in lines if line.strip()]
    return bool(told) and all(
        line[0] in "#;" or (unit_file and (line[0] == "[" or line.partition("=")[0].strip() in HARMLESS))
        for line in told
    )


def cut(fault_class: str, path: str, added: Sequence[str], removed: Sequence[str]) -> tuple[str, str, str]:
    """The setting whose value alone was changed by these lines, its value before and after, where the one before
    can be given back at run time, and holds however often the manager reads its units again; else empty texts.

    What is set at run time is a drop-in `50-NAME.conf`: it comes after unit files, and after drop-ins whose names
    are before it in the order of bytes (systemd.unit(5)).
    """
    for name in SETTINGS.get(fault_class, ()):
        if name not in RUNTIME:
            continue
        before, after = _values(name, removed), _values(name, added)
        file = path.rpartition("/")[2]
        lasting = not file.endswith(".conf") or file < f"50-{name}.conf"
        if len(before) == len(after) == 1 and before != after and lasting and _VALUE.fullmatch(before[0]):
            return name, before[0], after[0]
    return "", "", ""


def _values(name: str, lines: Sequence[str]) -> list[str]:
    told = (line.partition("=") for line in lines)
    return [value.strip() for key, _, value in told if key.strip() == name]
