# SPDX-License-Identifier: Apache-2.0
"""The safe tools that are programs of the system: a call's command line, and what it may read.

Nothing of it goes through a shell, and in the sandbox there is none to go through.
"""

from __future__ import annotations

from syntrop.toold.listeners import network_tables
from syntrop.toold.runner import Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from syntrop.toold.catalog import Call

# What every program of systemd looks at. /proc/self is the child's own: rules are bound before it executes.
_SELF = ("/proc/self", "/proc/sys/kernel", "/proc/filesystems", "/proc/cmdline", "/proc/stat", "/proc/meminfo")
_JOURNAL = (*_SELF, "/var/log/journal", "/run/log/journal", "/etc/machine-id", "/etc/systemd/journald.conf")
_TABLES = ("tcp", "tcp6", "udp", "udp6")
_NAMES = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf")
_COREDUMP = "fc2e22bc6ee647b6b90729ab34a250b1"  # MESSAGE_ID of systemd-coredump's entries
_COREDUMP_FIELDS = (
    "MESSAGE",
    "COREDUMP_TIMESTAMP",
    "COREDUMP_UNIT",
    "COREDUMP_COMM",
    "COREDUMP_EXE",
    "COREDUMP_PID",
    "COREDUMP_UID",
    "COREDUMP_SIGNAL",
    "COREDUMP_SIGNAL_NAME",
    "COREDUMP_PACKAGE_JSON",
)


def build(call: Call) -> Command | None:
    """The command of a call; None for a tool that is none."""
    builder = _BUILDERS.get(call.tool.name)
    return None if builder is None else builder(call)


def _journal_slice(call: Call) -> Command:
    argv = [
        "journalctl",
        "--no-pager",
        "--quiet",
        "--output=short-iso-precise",
        f"--lines={call.number('lines', 100)}",
    ]
    if call.unit:
        argv.append(f"--unit={call.unit}")
    argv += [f"--{name}={call.text(name)}" for name in ("since", "priority") if call.text(name)]
    return Command(argv, timeout=call.tool.timeout_ms / 1000, reads=_JOURNAL)


def _coredump_info(call: Call) -> Command:
    argv = ["journalctl", "--no-pager", "--quiet", "--output=json", f"--lines={call.number('count', 5)}"]
    argv.append(f"--output-fields={','.join(_COREDUMP_FIELDS)}")
    argv.append(f"MESSAGE_ID={_COREDUMP}")
    if call.unit:
        argv.append(f"COREDUMP_UNIT={call.unit}")
    return Command(argv, timeout=call.tool.timeout_ms / 1000, reads=_JOURNAL)


def _unit_verify(call: Call) -> Command:
    argv = ["systemd-analyze", "--man=no", "--recursive-errors=no", "verify", "--", str(call.unit)]
    units = ("/etc/systemd", "/run/systemd/system", "/run/systemd/generator", "/run/systemd/transient")
    more = ("/run/systemd/generator.early", "/run/systemd/generator.late", "/run/systemd/system.control")
    tables = ("/etc/fstab", "/etc/default", "/usr/bin", "/usr/sbin", "/etc/os-release", "/etc/machine-id")
    # It forks once, to run nothing (there are no generators), and makes itself a folder for that.
    return Command(
        argv,
        timeout=call.tool.timeout_ms / 1000,
        reads=(*_SELF, *_NAMES, *units, *more, *tables, "/sys/fs/cgroup", "/proc/swaps"),
        scratch=True,
        processes=True,
    )


def _net_listeners(call: Call) -> Command:
    """Where no netlink socket was passed (`listeners`): without systemd, or without its `toold-diag.socket`."""
    kinds = {"tcp": "--tcp", "udp": "--udp"}
    only = call.text("protocol")
    argv = ["ss", "--no-header", "--listening", "--numeric", *([kinds[only]] if only else kinds.values())]
    # It has no sockets, and a network of its own, in which nothing listens: it reads the kernel's tables of ours.
    tables = network_tables()
    return Command(
        argv,
        timeout=call.tool.timeout_ms / 1000,
        reads=("/proc/self", tables, "/proc/sys/net", "/etc/iproute2", "/usr/share/iproute2"),
        environment={f"PROC_NET_{name.upper()}": f"{tables}/{name}" for name in _TABLES},
    )


def _disk_usage(call: Call) -> Command:
    argv = ["df", "--output=target,fstype,size,used,avail,pcent,itotal,iused,ipcent", "--block-size=1"]
    path = call.text("path")
    if path:
        argv += ["--", path]
    return Command(argv, timeout=call.tool.timeout_ms / 1000, reads=("/proc/self",), mounts=True)


_BUILDERS: dict[str, Callable[[Call], Command]] = {
    "journal_slice": _journal_slice,
    "coredump_info": _coredump_info,
    "unit_verify": _unit_verify,
    "net_listeners": _net_listeners,
    "disk_usage": _disk_usage,
}
