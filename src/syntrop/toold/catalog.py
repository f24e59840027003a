# SPDX-License-Identifier: Apache-2.0
"""The tools: what each is, takes, may touch, and how it is undone. Declarations only; the code is elsewhere.

`safe` tools look; `remediation` tools act on a failed unit, within the policy; `maintenance` tools change files
beyond one unit. A safe tool that shows what the machine does not show to everybody is `private`: the journal is
for its own group and root, not for whoever can reach a socket.
"""

from __future__ import annotations

from syntrop.toold import arguments
from syntrop.toold.arguments import INT, PATH, STRING, UNIT, Parameter, Unsound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from syntrop.toold.arguments import Value

SAFE, REMEDIATION, MAINTENANCE = "safe", "remediation", "maintenance"
NONE, OPTIONAL, NEEDED = "none", "optional", "needed"
NOTHING = "nothing to undo"


class Tool:
    """One tool. `unit` tells whether it takes a target unit; `reads`, `writes` and `undone` are for people."""

    __slots__ = (
        "description",
        "mode",
        "name",
        "parameters",
        "private",
        "reads",
        "timeout_ms",
        "undone",
        "unit",
        "writes",
    )

    def __init__(
        self,
        name: str,
        description: str,
        mode: str,
        *,
        timeout_ms: int,
        unit: str = NONE,
        parameters: Sequence[Parameter] = (),
        private: bool = False,
        reads: Sequence[str] = (),
        writes: Sequence[str] = (),
        undone: str = NOTHING,
    ) -> None:
        self.name, self.description, self.mode = name, description, mode
        self.timeout_ms = timeout_ms
        self.unit = unit
        self.parameters = tuple(parameters)
        self.private = private
        self.reads, self.writes = tuple(reads), tuple(writes)
        self.undone = undone

    @property
    def changes(self) -> bool:
        return self.mode != SAFE


class Call:
    """A tool with sound arguments."""

    __slots__ = ("tool", "unit", "values")

    def __init__(self, tool: Tool, unit: str | None, values: dict[str, Value]) -> None:
        self.tool, self.unit, self.values = tool, unit, values

    def text(self, name: str, default: str = "") -> str:
        return str(self.values.get(name, default))

    def number(self, name: str, default: int) -> int:
        value = self.values.get(name, default)
        assert isinstance(value, int)
        return value

    def __str__(self) -> str:
        words = [self.tool.name, *([self.unit] if self.unit else [])]
        return " ".join([*words, *(f"{name}={value}" for name, value in self.values.items())])


_LINES = Parameter("lines", INT, "Most entries to show. Default 100.", optional=True, minimum=1, maximum=1000)
_JOURNAL = ("/var/log/journal", "/run/log/journal")
_UNITS = ("/etc/systemd", "/run/systemd", "/usr/lib/systemd")

# Properties that the manager can change while a unit runs, and how their values are written.
PROPERTIES = {
    "MemoryMax": "bytes",
    "MemoryHigh": "bytes",
    "MemoryLow": "bytes",
    "MemorySwapMax": "bytes",
    "TasksMax": "count",
    "CPUQuota": "percent",
    "CPUWeight": "weight",
    "IOWeight": "weight",
}

TOOLS = (
    Tool(
        "unit_status",
        "State of a unit, as the service manager sees it.",
        SAFE,
        timeout_ms=5000,
        unit=NEEDED,
        reads=("the service manager",),
    ),
    Tool(
        "journal_slice",
        "Newest entries of the journal, of one unit if one is given.",
        SAFE,
        timeout_ms=8000,
        unit=OPTIONAL,
        private=True,
        parameters=(
            _LINES,
            Parameter(
                "since",
                STRING,
                "Oldest time to show, as systemd.time(7) writes it: 10min ago, yesterday, 2026-01-31 12:00.",
                optional=True,
                pattern=arguments.time_word(),
            ),
            Parameter(
                "priority",
                STRING,
                "Show nothing less urgent.",
                optional=True,
                choices=("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"),
            ),
        ),
        reads=_JOURNAL,
    ),
    Tool(
        "unit_verify",
        "Looks for mistakes in a unit's files.",
        SAFE,
        timeout_ms=8000,
        unit=NEEDED,
        reads=_UNITS,
    ),
    Tool(
        "net_listeners",
        "Sockets that listen, TCP and UDP.",
        SAFE,
        timeout_ms=5000,
        parameters=(Parameter("protocol", STRING, "Only one kind.", optional=True, choices=("tcp", "udp")),),
        reads=("the kernel's socket tables",),
    ),
    Tool(
        "disk_usage",
        "Space and inodes of file systems: of all, or of the one that holds a path.",
        SAFE,
        timeout_ms=5000,
        parameters=(Parameter("path", PATH, "A path in the file system.", optional=True),),
        reads=("mount table",),
    ),
    Tool(
        "coredump_info",
        "What the journal says of crashes: program, signal, stack. No memory contents.",
        SAFE,
        timeout_ms=8000,
        unit=OPTIONAL,
        private=True,
        parameters=(
            Parameter("count", INT, "Most crashes to show. Default 5.", optional=True, minimum=1, maximum=50),
        ),
        reads=_JOURNAL,
    ),
    Tool(
        "daemon_reload",
        "Has the service manager read its units again.",
        REMEDIATION,
        timeout_ms=30000,
        writes=("the service manager",),
    ),
    Tool(
        "unit_restart",
        "Restarts a unit, and waits until it has.",
        REMEDIATION,
        timeout_ms=90000,
        unit=NEEDED,
        writes=("the service manager",),
        undone=f"{NOTHING}: a restart leaves the unit as it was",
    ),
    Tool(
        "unit_reset_failed",
        "Forgets that a unit has failed, and how often it was started.",
        REMEDIATION,
        timeout_ms=5000,
        unit=NEEDED,
        writes=("the service manager",),
    ),
    Tool(
        "unit_stop",
        "Stops a unit, and waits until it has.",
        REMEDIATION,
        timeout_ms=90000,
        unit=NEEDED,
        writes=("the service manager",),
        undone="the unit is started again, if it ran",
    ),
    Tool(
        "revert_dropin",
        "Removes an administrator's drop-in of a unit, and has the service manager read its units again.",
        REMEDIATION,
        timeout_ms=30000,
        unit=NEEDED,
        parameters=(
            Parameter(
                "name",
                STRING,
                "File name of the drop-in. Default: the one that was changed last.",
                optional=True,
                pattern=arguments.file_name(),
            ),
            Parameter(
                "path",
                PATH,
                "Its path, where several of the unit's have this name. Default: the newest.",
                optional=True,
            ),
            Parameter(
                "digest",
                STRING,
                "SHA-256 of what it has to hold still, in hexadecimal. Default: whatever it holds.",
                optional=True,
                pattern=arguments.digest(),
            ),
        ),
        writes=("/etc/systemd/system/UNIT.d", "/run/systemd/system/UNIT.d"),
        undone="the file is put back as it was",
    ),
    Tool(
        "restore_file",
        "Puts a file back: as it was before a change of toold's, or from a copy that lies beside it.",
        MAINTENANCE,
        timeout_ms=30000,
        parameters=(
            Parameter("path", PATH, "The file."),
            Parameter(
                "source",
                STRING,
                "Identifier of the change whose earlier content is wanted, or the file name of a copy in the same "
                "folder that begins with the file's own name. Default: the newest change.",
                optional=True,
                pattern=arguments.file_name(),
            ),
            Parameter(
                "digest",
                STRING,
                "SHA-256 of what it has to hold still, in hexadecimal, or 'absent'. Default: whatever it holds.",
                optional=True,
                pattern=arguments.content(),
            ),
        ),
        writes=("the file",),
        undone="the file is put back as it was",
    ),
    Tool(
        "set_unit_property",
        "Changes a resource limit of a unit while it runs, until the next boot.",
        REMEDIATION,
        timeout_ms=30000,
        unit=NEEDED,
        parameters=(
            Parameter("property", STRING, "Name of the property.", choices=tuple(PROPERTIES)),
            Parameter("value", STRING, "Its value, as systemd.resource-control(5) writes it."),
        ),
        writes=("/run/systemd/system.control/UNIT.d",),
        undone="the earlier setting is put back",
    ),
    Tool(
        "clear_cache",
        "Empties the cache folders that a unit declares (CacheDirectory=).",
        MAINTENANCE,
        timeout_ms=60000,
        unit=NEEDED,
        writes=("/var/cache/…",),
        undone="every file is put back; what is too much to keep is not removed in the first place",
    ),
)

_ELSEWHERE = "a unit is no argument: it is given as target_unit, to syntropctl as --unit UNIT"
_BY_NAME = {tool.name: tool for tool in TOOLS}
# Names that older callers know.
_ALIASES = {
    "unit.status": "unit_status",
    "journal.slice": "journal_slice",
    "net.listeners": "net_listeners",
    "syntax.verify": "unit_verify",
    "unit.restart": "unit_restart",
}


def find(name: str) -> Tool:
    """The tool of a name. Raises KeyError."""
    return _BY_NAME[_ALIASES.get(name, name)]


def parse(tool: Tool, args: Sequence[str], target_unit: str | None) -> Call:
    """A call with sound arguments. Raises Unsound; nothing has been looked at or touched then."""
    if target_unit is not None and tool.unit == NONE:
        raise Unsound("target_unit", f"{tool.name} takes none")
    if target_unit is None and tool.unit == NEEDED:
        raise Unsound("target_unit", "missing")
    unit = None if target_unit is None else Parameter("target_unit", UNIT, "").parse(target_unit)
    try:
        values = arguments.parse(tool.parameters, args)
    except Unsound as error:
        # The unit, most likely, where the first argument should be.
        if unit is None and tool.unit == OPTIONAL and any(letter.isalpha() for letter in args[0]):
            raise Unsound(error.parameter, f"{error.reason}; {_ELSEWHERE}") from None
        raise
    if tool.name == "set_unit_property":
        property_value(str(values["property"]), str(values["value"]))
    return Call(tool, None if unit is None else str(unit), values)


_INFINITY = 2**64 - 1


def property_value(name: str, text: str) -> tuple[str, str, int]:
    """A property as the manager takes it over D-Bus: its name there, signature and value. Raises Unsound."""
    import re

    kind = PROPERTIES[name]
    match = re.fullmatch(r"([0-9]{1,15})([KMGT%]?)", text)
    if text == "infinity" and kind in ("bytes", "count", "percent") and name != "MemoryLow":
        return ("CPUQuotaPerSecUSec" if kind == "percent" else name), "t", _INFINITY
    if match is None:
        raise Unsound("value", f"no value of {name}")
    number, suffix = int(match[1]), match[2]
    if kind == "bytes" and suffix != "%":
        return name, "t", number << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[suffix]
    if kind == "count" and not suffix and number > 0:
        return name, "t", number
    if kind == "weight" and not suffix and 1 <= number <= 10000:
        return name, "t", number
    if kind == "percent" and suffix == "%" and 1 <= number <= 100_000:
        return "CPUQuotaPerSecUSec", "t", number * 10_000
    raise Unsound("value", f"no value of {name}")
