# SPDX-License-Identifier: Apache-2.0
"""Socket and service units as the activator understands them, and the folder they come from.

`load(folder, roots)` gives a `Catalogue`: what to bind, what to start, and which directives of the files the
activator cannot honour. Reading is the only I/O.
"""

from __future__ import annotations

import os

from syntrop.ctl import unitfile
from syntrop.ctl.unitfile import UnitError, UnitFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

TARGET = "syntrop-sockets.target"
FOLDERS = ("RuntimeDirectory", "StateDirectory", "CacheDirectory", "LogsDirectory", "ConfigurationDirectory")
LIMITS = (
    "LimitCPU", "LimitFSIZE", "LimitDATA", "LimitSTACK", "LimitCORE", "LimitRSS", "LimitNOFILE", "LimitAS",
    "LimitNPROC", "LimitMEMLOCK", "LimitLOCKS", "LimitSIGPENDING", "LimitMSGQUEUE", "LimitNICE",
    "LimitRTPRIO",
)  # fmt: skip
# What the activator does as systemd would.
HONOURED_SERVICE = {
    "Type", "ExecStart", "ExecStopPost", "Environment", "EnvironmentFile", "PassEnvironment", "UMask",
    "UnsetEnvironment", "WorkingDirectory", "User", "Group", "SupplementaryGroups", "OOMScoreAdjust", "Nice",
    "NoNewPrivileges",
    "Restart", "RestartSec", "RestartSteps", "RestartMaxDelaySec", "SuccessExitStatus", "Sockets",
    "RestartPreventExitStatus", "TimeoutSec", "TimeoutStartSec", "TimeoutStopSec", "TimeoutAbortSec",
    "WatchdogSec", "WatchdogSignal", "KillSignal", "SendSIGKILL", "NotifyAccess", "NonBlocking",
    "RuntimeDirectoryPreserve", *(f"{folder}Mode" for folder in FOLDERS), *FOLDERS, *LIMITS,
}  # fmt: skip
HONOURED_SOCKET = {
    "ListenStream", "Service", "SocketMode", "SocketUser", "SocketGroup", "DirectoryMode", "Backlog",
    "FileDescriptorName", "RemoveOnStop", "TriggerLimitIntervalSec", "TriggerLimitBurst", "BindIPv6Only",
    "NoDelay", "KeepAlive", "ReusePort", "FreeBind", "Accept",
}  # fmt: skip
# What has no meaning in a foreground program, or is done in another way (children are always killed with
# their service, output is always forwarded): not worth a word at start.
MOOT = {
    "Slice", "KillMode", "StandardInput", "StandardOutput", "StandardError", "SyslogIdentifier", "ExecReload",
    "ReloadSignal", "GuessMainPID", "Symlinks", "PassCredentials", "Delegate",
    "FinalKillSignal", "Writable", "FlushPending", "StartLimitIntervalSec", "StartLimitBurst",
    "PollLimitIntervalSec", "PollLimitBurst", "LogRateLimitIntervalSec", "LogRateLimitBurst",
    "LogExtraFields", "OOMPolicy",
}  # fmt: skip
RESTARTS = {"no", "on-failure", "on-abnormal"}  # the others would undo exit-on-idle, or are subsets of no use


class SocketUnit:
    """One `*.socket` file: addresses in order, and what holds for all of them."""

    __slots__ = (
        "addresses", "backlog", "descriptor_name", "directory_mode", "group", "ipv6_only", "mode", "name",
        "options", "remove_on_stop", "service", "trigger_burst", "trigger_interval", "user",
    )  # fmt: skip

    def __init__(self, unit: UnitFile, specifiers: Mapping[str, str]) -> None:
        read = _Reader(unit, "Socket", specifiers)
        self.name = unit.name
        self.addresses = read.all("ListenStream")
        # A netlink socket is made by systemd where its service may make none: here that does without.
        if not self.addresses and not read.all("ListenNetlink"):
            raise UnitError(f"{unit.name}: no ListenStream=")
        # Accept=yes means a process a connection, of a template. Here one process accepts them all: the suite's
        # programs serve what they are passed, a connection or the socket.
        template = "@" if read.one("Accept", unitfile.boolean, False) else ""
        self.service = read.text("Service", unit.name.removesuffix(".socket") + f"{template}.service")
        self.descriptor_name = read.text("FileDescriptorName", unit.name)
        self.mode = read.one("SocketMode", unitfile.octal, 0o666)
        self.directory_mode = read.one("DirectoryMode", unitfile.octal, 0o755)
        self.user = read.text("SocketUser")
        self.group = read.text("SocketGroup")
        # systemd's default is the largest number there is: the kernel cuts it to net.core.somaxconn
        self.backlog = min(read.one("Backlog", unitfile.integer, 2**31 - 1), 2**31 - 1)
        self.remove_on_stop = read.one("RemoveOnStop", unitfile.boolean, False)
        self.trigger_interval = read.one("TriggerLimitIntervalSec", unitfile.seconds, 2.0)
        self.trigger_burst = read.one("TriggerLimitBurst", unitfile.integer, 20)
        self.ipv6_only = read.text("BindIPv6Only", "default")
        self.options = {
            name: read.one(name, unitfile.boolean, False)
            for name in ("NoDelay", "KeepAlive", "ReusePort", "FreeBind")
        }


class ServiceUnit:
    """One `*.service` file, specifiers expanded. Times in seconds, `inf` for no limit."""

    __slots__ = (
        "command_line", "environment", "environment_files", "folder_modes", "folders", "group",
        "groups", "kill_signal", "limits", "max_delay", "name", "new_privileges", "nice", "non_blocking",
        "notify_access", "oom_score", "pass_environment", "preserve_runtime", "prevent_restart", "restart",
        "restart_delay", "restart_steps", "send_sigkill", "stop_post", "success", "timeout_abort", "timeout_start",
        "timeout_stop", "type", "umask", "unset_environment", "user", "watchdog", "watchdog_signal",
        "working_directory",
    )  # fmt: skip

    def __init__(self, unit: UnitFile, specifiers: Mapping[str, str]) -> None:
        read = _Reader(unit, "Service", specifiers)
        self.name = unit.name
        lines = read.all("ExecStart")
        if len(lines) != 1:
            raise UnitError(f"{unit.name}: {len(lines)} ExecStart= lines; one is needed")
        self.command_line = lines[0]
        self.stop_post = read.all("ExecStopPost")
        """Commands that are run one after the other once the process has ended, however it did."""
        self.type = read.text("Type", "simple")
        if self.type not in ("simple", "exec", "notify", "notify-reload"):
            raise UnitError(f"{unit.name}: Type={self.type} is not supported")
        self.environment = read.check("Environment", unitfile.assignments, read.all("Environment"))
        self.environment_files = read.all("EnvironmentFile")
        self.pass_environment = read.listed("PassEnvironment")
        self.unset_environment = read.listed("UnsetEnvironment")
        self.umask = read.one("UMask", unitfile.octal, 0o022)
        self.working_directory = read.text("WorkingDirectory")
        self.user = read.text("User")
        self.group = read.text("Group")
        self.groups = read.listed("SupplementaryGroups")
        self.oom_score: int | None = read.one("OOMScoreAdjust", unitfile.integer, None)
        self.nice: int | None = read.one("Nice", unitfile.integer, None)
        self.new_privileges = not read.one("NoNewPrivileges", unitfile.boolean, False)
        self.restart = read.text("Restart", "no")
        if self.restart not in RESTARTS:
            raise UnitError(f"{unit.name}: Restart={self.restart} is not supported")
        self.restart_delay = read.one("RestartSec", unitfile.seconds, 0.1)
        self.restart_steps = read.one("RestartSteps", unitfile.integer, 0)
        self.max_delay = read.one("RestartMaxDelaySec", unitfile.seconds, float("inf"))
        self.success = _statuses(read.listed("SuccessExitStatus"))
        self.prevent_restart = _statuses(read.listed("RestartPreventExitStatus"))
        both = read.one("TimeoutSec", unitfile.seconds, 90.0)
        self.timeout_start = read.one("TimeoutStartSec", unitfile.seconds, both) or float("inf")
        self.timeout_stop = read.one("TimeoutStopSec", unitfile.seconds, both) or float("inf")
        self.timeout_abort = read.one("TimeoutAbortSec", unitfile.seconds, self.timeout_stop) or float("inf")
        self.watchdog = read.one("WatchdogSec", unitfile.seconds, 0.0)
        self.watchdog_signal = read.text("WatchdogSignal", "SIGABRT")
        self.kill_signal = read.text("KillSignal", "SIGTERM")
        self.send_sigkill = read.one("SendSIGKILL", unitfile.boolean, True)
        implied = "main" if self.type.startswith("notify") or self.watchdog else "none"
        self.notify_access = read.text("NotifyAccess", implied)
        self.non_blocking = read.one("NonBlocking", unitfile.boolean, False)
        self.folders = {kind: read.listed(kind) for kind in FOLDERS}
        self.folder_modes = {kind: read.one(f"{kind}Mode", unitfile.octal, 0o755) for kind in FOLDERS}
        self.preserve_runtime = read.text("RuntimeDirectoryPreserve", "no") != "no"
        self.limits = {
            name.removeprefix("Limit"): read.one(name, unitfile.limit, (-1, -1))
            for name in LIMITS
            if unit.all("Service", name)
        }


class _Reader:
    """Typed access to one section, with the unit and key named in every error."""

    def __init__(self, unit: UnitFile, section: str, specifiers: Mapping[str, str]) -> None:
        self.unit, self.section = unit, section
        self.specifiers = {**specifiers, **unitfile.unit_specifiers(unit.name)}

    def all(self, key: str) -> list[str]:
        return [self.check(key, self._expand, value) for value in self.unit.all(self.section, key)]

    def _expand(self, text: str) -> str:
        return unitfile.expand(text, self.specifiers)

    def text(self, key: str, default: str = "") -> str:
        values = self.all(key)
        return values[-1] if values else default

    def listed(self, key: str) -> list[str]:
        return [word for value in self.all(key) for word in self.check(key, unitfile.words, value)]

    def one(self, key: str, parse: Callable[[str], T], default: T) -> T:
        value = self.text(key)
        return self.check(key, parse, value) if value else default

    def check(self, key: str, parse: Callable[..., T], value: object) -> T:
        try:
            return parse(value)
        except UnitError as error:
            raise UnitError(f"{self.unit.name}: {key}=: {error}") from None


def _statuses(listed: list[str]) -> frozenset[str]:
    """Exit statuses and signal names as `0`…`255` or `SIGTERM`."""
    return frozenset(listed)


class Catalogue:
    """All units of a folder."""

    __slots__ = ("folder", "services", "sockets", "unhonoured", "warnings")

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.sockets: dict[str, SocketUnit] = {}
        self.services: dict[str, ServiceUnit] = {}
        self.unhonoured: dict[str, list[str]] = {}
        """Directive to the units that use it."""
        self.warnings: list[str] = []

    def sockets_of(self, service: str) -> list[SocketUnit]:
        """The service's socket units by name: its own first, as `Sockets=` implies, then the others."""
        own = service.removesuffix(".service") + ".socket"
        mine = [unit for unit in self.sockets.values() if unit.service == service]
        return sorted(mine, key=lambda unit: (unit.name != own, unit.name))


def load(folder: str, specifiers: Mapping[str, str]) -> Catalogue:
    """Read the folder's `*.socket` files, where it has the suite's target those that the target enables, and the
    services they start. Raises UnitError or OSError.
    """
    found = Catalogue(folder)
    for name in _socket_names(folder):
        unit = _read(folder, name)
        found.sockets[name] = SocketUnit(unit, specifiers)
        _account(found, unit, "Socket", HONOURED_SOCKET)
    if not found.sockets:
        raise UnitError(f"no *.socket files in {folder}")
    for name in sorted({unit.service for unit in found.sockets.values()}):
        try:
            unit = _read(folder, name)
        except FileNotFoundError:
            raise UnitError(f"{folder} has a socket for {name}, but no such file") from None
        found.services[name] = ServiceUnit(unit, specifiers)
        _account(found, unit, "Service", HONOURED_SERVICE)
    return found


def _socket_names(folder: str) -> list[str]:
    """The sockets that are the suite's: an installed one shares the system's folder with everybody's units."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".socket"))
    if not os.path.exists(os.path.join(folder, TARGET)):
        return names
    ours = {word for also in _read(folder, TARGET).all("Install", "Also") for word in also.split()}
    return [name for name in names if name in ours]


def _read(folder: str, name: str) -> UnitFile:
    """One unit with its drop-ins (`NAME.d/*.conf`), read in the order of their names."""
    unit = UnitFile(name)
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        unit.read(file.read())
    drops = os.path.join(folder, name + ".d")
    if os.path.isdir(drops):
        for drop in sorted(entry for entry in os.listdir(drops) if entry.endswith(".conf")):
            with open(os.path.join(drops, drop), encoding="utf-8") as file:
                unit.read(file.read(), f"{name}.d/{drop}")
    return unit


def _account(found: Catalogue, unit: UnitFile, section: str, honoured: set[str]) -> None:
    found.warnings.extend(unit.warnings)
    for key in unit.keys(section):
        if key not in honoured and key not in MOOT:
            found.unhonoured.setdefault(key, []).append(unit.name)


def default_folder() -> str:
    """Where this copy of the suite keeps its units: the checkout's, the environment's, or the system's.

    Raises FileNotFoundError when none of them has the suite's sockets.
    """
    import sys

    here = os.path.dirname(os.path.abspath(__file__))
    candidates = (
        os.path.normpath(os.path.join(here, "..", "..", "..", "units")),
        os.path.join(sys.prefix, "share", "syntrop", "units"),
        "/usr/lib/systemd/system",
    )
    for folder in candidates:
        if os.path.exists(os.path.join(folder, "routerd.socket")):
            return folder
    raise FileNotFoundError(f"the suite's unit files are in none of {', '.join(candidates)}")
