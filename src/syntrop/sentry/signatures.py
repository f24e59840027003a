# SPDX-License-Identifier: Apache-2.0
"""Texts by which faults are known, and what each is worth. A table; `scan` reads a failure's evidence with it.
Pure.

The manager's texts are those of systemd 252 to 257 (`tests/data/incidents`), the kernel's those of Linux 5.15 to
6.12. A signature of the manager's is looked for in the manager's words only. What a service says of itself is
worth less: it can be a consequence, an old story, or made up; what it is worth more is for corroboration
(causes.py).
"""

from __future__ import annotations

from syntrop.common.patterns import late
from syntrop.sentry.evidence import KERNEL, MANAGER, SERVICE, SPAWN
from syntrop.sentry.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.sentry.evidence import Entry, Evidence

# Classes of fault: `Cause.fault_class` of io.syntrop.Sentry1.
MEMORY_LIMIT, MEMORY_EXHAUSTED, DESCRIPTOR_LIMIT = "memory_limit", "memory_exhausted", "descriptor_limit"
MISSING_PROGRAM, MISSING_FILE, MISSING_LIBRARY = "missing_program", "missing_file", "missing_library"
UNIT_SYNTAX, EXECUTION_CONTEXT, CONFIGURATION = "unit_syntax", "execution_context", "configuration"
PORT_TAKEN, DEPENDENCY, PERMISSION = "port_taken", "dependency", "permission"
DISK_FULL, READ_ONLY, CLOCK = "disk_full", "read_only", "clock"
CRASH, PACKAGE_UPGRADE, FLAPPING, SYSTEM_CALL = "crash", "package_upgrade", "flapping", "system_call"
TIMEOUT, WATCHDOG, PROTOCOL, JOB_FAILED = "timeout", "watchdog", "protocol", "job_failed"
STOPPED_BY_HAND, RECOVERED = "stopped_by_hand", "recovered"
NO_FAILURE, UNKNOWN = "no_failure", "unknown"
FAULT_CLASSES = (
    MEMORY_LIMIT, MEMORY_EXHAUSTED, DESCRIPTOR_LIMIT, MISSING_PROGRAM, MISSING_FILE, MISSING_LIBRARY, UNIT_SYNTAX,
    EXECUTION_CONTEXT, CONFIGURATION, PORT_TAKEN, DEPENDENCY, PERMISSION, DISK_FULL, READ_ONLY, CLOCK, CRASH,
    PACKAGE_UPGRADE, FLAPPING, SYSTEM_CALL, TIMEOUT, WATCHDOG, PROTOCOL, JOB_FAILED, STOPPED_BY_HAND, RECOVERED,
    NO_FAILURE, UNKNOWN,
)  # fmt: skip

# Each in a sentence; `{subject}` is what the finding names.
WORDS = {
    MEMORY_LIMIT: "it was killed at its memory limit",
    MEMORY_EXHAUSTED: "the machine ran out of memory, and it was killed",
    DESCRIPTOR_LIMIT: "it ran out of file descriptors",
    MISSING_PROGRAM: "its program {subject} cannot be executed",
    MISSING_FILE: "a file that it needs is missing",
    MISSING_LIBRARY: "a library or module that it needs is missing",
    EXECUTION_CONTEXT: "what its unit asks for cannot be set up",
    CONFIGURATION: "it does not take its configuration",
    PORT_TAKEN: "the address that it wants to listen on is taken",
    DEPENDENCY: "a unit or service that it needs is not there",
    PERMISSION: "it may not use what it needs",
    DISK_FULL: "there is no space left",
    READ_ONLY: "it wants to write where everything is read-only",
    CLOCK: "the clock is wrong",
    FLAPPING: "it fails each time that it is started",
    STOPPED_BY_HAND: "somebody had it killed",
    CRASH: "it crashed",
    TIMEOUT: "it took too long",
    WATCHDOG: "it stopped telling that it is alive",
    PROTOCOL: "it did not report as its Type= demands",
    SYSTEM_CALL: "it made a system call that its unit forbids",
}

_MANAGER = (MANAGER,)
_SPAWN = (MANAGER, SPAWN)
_SERVICE = (SERVICE,)
_KERNEL = (KERNEL,)


class Signature(Record):
    """A text of `origins` that speaks for a fault class with `weight` (0 to 1) on its own.

    Groups of the pattern: `path` names a file, `name` anything else that is the matter. Where `near` is set the
    file is looked for beside the text, and one that is found adds NEAR to the weight. A message that has none of
    the `needles` (in small letters) is not looked at: most have none, and finding that out costs a microsecond.
    """

    __slots__ = ("fault_class", "name", "near", "needles", "origins", "pattern", "weight")

    def __init__(
        self,
        name: str,
        fault_class: str,
        origins: tuple[str, ...],
        weight: float,
        needles: str,
        pattern: str,
        *,
        near: bool = False,
    ) -> None:
        self.name, self.fault_class, self.origins, self.weight = name, fault_class, origins, weight
        self.needles = tuple(needles.split("|"))
        self.pattern = late(pattern)
        self.near = near

    def search(self, message: str, small: str) -> tuple[str, float] | None:
        """What it names in a message, and its weight there; None where it is not found. `small` is the message in
        small letters.
        """
        if not any(needle in small for needle in self.needles):
            return None
        match = self.pattern.search(message)
        if match is None:
            return None
        if self.near:
            subject = _beside(message, match.start(), match.end())
            return subject, self.weight + (NEAR if subject else 0.0)
        groups = match.groupdict()
        named = (groups[name] for name in ("path", "path2", "name", "name2", "name3") if groups.get(name))
        return next(named, "").rstrip("."), self.weight


class Finding(Record):
    """A signature that was found in an entry; `subject` is the file or thing that it names, or empty."""

    __slots__ = ("entry_id", "signature", "subject", "weight")

    def __init__(self, signature: Signature, entry_id: str, subject: str, weight: float) -> None:
        self.signature, self.entry_id, self.subject, self.weight = signature, entry_id, subject, weight


NEAR = 0.15
# Paths in messages: bounded, and without the punctuation that follows them in a sentence.
_PATH = r"(?P<path>/[^\s'\":,;()\[\]]{1,512})"
_PATHS = late(r"(?<![\w./~-])/[^\s'\":,;()\[\]<>]{1,512}")

SIGNATURES = (
    # Before the program runs: systemd.exec(5), "Process Exit Codes".
    Signature(
        "spawn-exec", MISSING_PROGRAM, _SPAWN, 0.85, "failed at step exec",
        rf"Failed at step EXEC spawning {_PATH}: No such file or directory",
    ),
    Signature(
        "locate-exec", MISSING_PROGRAM, _SPAWN, 0.85, "to locate executable",
        r"(?:Unable|Failed) to locate executable '?(?P<path>[^\s']{1,512})'?: No such file or directory",
    ),
    Signature(
        "spawn-denied", PERMISSION, _SPAWN, 0.85,
        "failed at step exec", rf"Failed at step EXEC spawning {_PATH}: Permission denied",
    ),
    Signature(
        "spawn-format", MISSING_PROGRAM, _SPAWN, 0.75,
        "failed at step exec", rf"Failed at step EXEC spawning {_PATH}: Exec format error",
    ),
    Signature(
        "spawn-directory", MISSING_FILE, _SPAWN, 0.85, "failed at step chdir",
        r"Failed at step CHDIR spawning (?P<name>\S{1,256}): No such file or directory",
    ),
    Signature(
        "spawn-namespace", MISSING_FILE, _SPAWN, 0.85, "mount namespacing",
        r"Failed to set up mount namespacing: (?:/run/systemd/unit-root)?(?P<path>/[^\s:]{1,512}):"
        r" No such file or directory",
    ),
    Signature(
        "spawn-other", EXECUTION_CONTEXT, _SPAWN, 0.75, "failed at step",
        r"Failed at step (?!EXEC|CHDIR|NAMESPACE)(?P<name>[A-Z_]{2,40}) spawning \S{1,256}: ",
    ),
    Signature(
        "environment-file", MISSING_FILE, _MANAGER, 0.88, "environment files",
        r"Failed to load environment files: No such file or directory",
    ),
    # Units that cannot be loaded.
    Signature(
        "unit-refused", UNIT_SYNTAX, _MANAGER, 0.9, "refusing",
        r": Service (?:has (?:no ExecStart=|more than one ExecStart=)|lacks both ExecStart=)[^\n]{0,256}Refusing",
    ),
    Signature(
        "unit-line", UNIT_SYNTAX, _MANAGER, 0.45,
        "unknown |missing '='|failed to parse|invalid section|outside of section|unbalanced|executable",
        r"\A(?P<path>/[^\s:]{1,512}):(?P<line>\d{1,6}): (?:Unknown (?:key|section|lvalue)|Missing '='"
        r"|Failed to parse"
        r"|Invalid section header|Assignment outside of section|Unbalanced quoting|Executable)",
    ),
    # Memory.
    Signature(
        "oom-unit", MEMORY_LIMIT, _MANAGER, 0.6, "oom killer|oom-kill",
        r"A process of this unit has been killed by the OOM killer|Failed with result 'oom-kill'",
    ),
    Signature("oom-memcg", MEMORY_LIMIT, _KERNEL, 0.85, "oom-kill:", r"oom-kill:constraint=CONSTRAINT_MEMCG,"),
    Signature(
        "oom-memcg-killed", MEMORY_LIMIT, _KERNEL, 0.4,
        "cgroup out of memory",
        r"Memory cgroup out of memory: Killed process \d+",
    ),
    Signature(
        "oom-machine", MEMORY_EXHAUSTED, _KERNEL, 0.85, "oom-kill:|out of memory: killed",
        r"oom-kill:constraint=CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY),|\AOut of memory: Killed process \d+",
    ),
    Signature(
        "oomd", MEMORY_EXHAUSTED, _MANAGER, 0.85,
        "systemd-oomd",
        r"systemd-oomd killed (?:\d+|some) process",
    ),
    # Other units.
    Signature("dependency-job", DEPENDENCY, _MANAGER, 0.93, "dependency", r"\ADependency failed for "
        r"|failed with result 'dependency'"),
    # The manager's own view of how it ended.
    Signature(
        "start-limit", FLAPPING, _MANAGER, 0.93,
        "repeated too quickly",
        r": Start request repeated too quickly\.",
    ),
    Signature(
        "assertion", EXECUTION_CONTEXT, _MANAGER, 0.8,
        "asserts failed",
        r": Starting requested but asserts failed\.",
    ),
    Signature(
        "timed-out", TIMEOUT, _MANAGER, 0.8, "timed out",
        r": (?:(?:start|start-pre|start-post|reload)(?: operation)? timed out\. "
        r"|State '[a-z-]{1,40}' timed out\. )",
    ),
    Signature("watchdog", WATCHDOG, _MANAGER, 0.9, "watchdog timeout", r": Watchdog timeout \(limit "),
    Signature(
        "pid-file", PROTOCOL, _MANAGER, 0.6,
        "pid file",
        r": Can't open PID file '?(?P<path>/[^\s']{1,512})'? ",
    ),
    Signature(
        "client-kill", STOPPED_BY_HAND, _MANAGER, 0.93, "on client request",
        r": Sent signal SIG[A-Z0-9+]{1,12} to main process \d{1,10} \([^)\n]{0,64}\) on client request\.",
    ),
    Signature(
        "socket-refused", PORT_TAKEN, _MANAGER, 0.6, "listening socket",
        r"Failed to (?:receive|create) listening socket \((?P<name>[^)\n]{1,128})\): ",
    ),
    Signature(
        "socket-taken", PORT_TAKEN, _SPAWN, 0.85, "listening socket",
        r"Failed to create listening socket \((?P<name>[^)\n]{1,128})\): Address already in use",
    ),
    # What programs say of the machine around them.
    Signature(
        "address-in-use", PORT_TAKEN, _SERVICE, 0.85,
        "eaddrinuse|already in use|already allocated|one usage of each",
        r"\bEADDRINUSE\b|[Aa]ddress(?: is)? already in use|[Oo]nly one usage of each socket address"
        r"|[Pp]ort \d{1,5} is already (?:in use|allocated)",
    ),
    Signature(
        "descriptors", DESCRIPTOR_LIMIT, _SERVICE, 0.85,
        "emfile|too many open files",
        r"\bEMFILE\b|[Tt]oo many open files(?! in system)",
    ),
    Signature(
        "no-space", DISK_FULL, _SERVICE, 0.85,
        "enospc|no space left|quota exceeded", r"\bENOSPC\b|[Nn]o space left on device|[Dd]isk quota exceeded",
    ),
    Signature(
        "read-only", READ_ONLY, _SERVICE, 0.8,
        "erofs|read-only file",
        r"\bEROFS\b|[Rr]ead-only file ?system",
    ),
    Signature(
        "denied", PERMISSION, _SERVICE, 0.6, "permission denied|eacces|operation not permitted",
        r"[Pp]ermission denied|\bEACCES\b|[Oo]peration not permitted", near=True,
    ),
    Signature(
        "file-absent", MISSING_FILE, _SERVICE, 0.5,
        "no such file|enoent", r"[Nn]o such file or directory|\bENOENT\b", near=True,
    ),
    Signature(
        "library", MISSING_LIBRARY, _SERVICE, 0.85,
        "shared libraries|undefined symbol|symbol lookup|not found (required",
        r"error while loading shared libraries: (?P<name>[^\s:]{1,256}):"
        r"|undefined symbol: (?P<name2>\S{1,256})"
        r"|version `(?P<name3>[^']{1,128})' not found \(required by",
    ),
    Signature(
        "module", MISSING_LIBRARY, _SERVICE, 0.8, "no module named|cannot find module|noclassdef|classnotfound",
        r"ModuleNotFoundError: No module named '(?P<name>[^'\n]{1,256})'"
        r"|Cannot find module '(?P<name2>[^'\n]{1,256})'"
        r"|java\.lang\.(?:NoClassDefFoundError|ClassNotFoundException): (?P<name3>\S{1,256})",
    ),
    Signature(
        "refused", DEPENDENCY, _SERVICE, 0.55,
        "refused|could not connect|no route to host|name resolution|name or service",
        r"[Cc]onnection refused|\bECONNREFUSED\b|[Cc]ould not connect to|[Nn]o route to host"
        r"|[Tt]emporary failure in name resolution|Name or service not known",
    ),
    Signature(
        "config-path", CONFIGURATION, _SERVICE, 0.75, " line |:|error",
        rf"\b(?:in|at|from|file|config(?:uration)?)[ :=]{{1,3}}['\"]?{_PATH}['\"]?(?::\d+|,? (?:on |at )?line \d+)"
        r"|(?:[Pp]arse|[Ss]yntax|[Cc]onfig(?:uration)?)\w{0,8} error[^\n/]{0,128}"
        r"(?P<path2>/[^\s'\":,;()\[\]]{1,512})",
    ),
    Signature(
        "config-parser", CONFIGURATION, _SERVICE, 0.72,
        "decodeerror|yaml.|parsererror|configparser|config|invalid|malformed|bad |unknown ",
        r"TOMLDecodeError|JSONDecodeError|yaml\.(?:scanner|parser|constructor)\.\w+Error|\bParserError\b"
        r"|configparser\.\w+Error|[Cc]onfig(?:uration)? (?:file )?(?:error|is invalid|test failed|check failed)"
        r"|(?:[Ii]nvalid|[Mm]alformed|[Bb]ad) (?:config|configuration|setting|directive|option|value)\b"
        r"|[Uu]nknown (?:directive|option|setting|configuration|keyword|parameter)\b"
        r"|(?:[Cc]annot|[Cc]ould not|[Ff]ailed to|[Uu]nable to) (?:load|parse|read) (?:the )?config",
    ),
    Signature(
        "clock", CLOCK, _SERVICE, 0.75, "not yet valid|clock|in the future|not valid before|not_yet_valid",
        r"certificate is not yet valid|[Cc]lock skew (?:detected|too great)|(?:timestamp|time|date)s? (?:is"
        r"|are|lies?)"
        r" in the future|[Ss]ystem clock (?:is|was) (?:wrong|set|moved)|not valid before"
        r"|X509_V_ERR_CERT_NOT_YET_VALID",
    ),
    Signature("segfault", CRASH, _KERNEL, 0.7,
        "segfault|traps:|general protection",
        r"\]: segfault at [0-9a-f]+ ip |traps: \S{1,64} trap "
        r"|general protection"),
)  # fmt: skip


def scan(evidence: Evidence) -> list[Finding]:
    """The signatures that are found, in the order of the entries. Each is told once for each subject.

    Entries about other units are passed over, and what of a service's is worded as only the manager words it.
    """
    found: list[Finding] = []
    seen: set[tuple[str, str]] = set()
    for entry in evidence.entries:
        if not _about(evidence.unit, entry):
            continue
        small = entry.message.lower()
        if entry.origin == SERVICE and _mimics(entry.message, small):
            continue
        for signature in SIGNATURES:
            if entry.origin not in signature.origins:
                continue
            told = signature.search(entry.message, small)
            if told is not None and (signature.name, told[0]) not in seen:
                seen.add((signature.name, told[0]))
                found.append(Finding(signature, entry.id, *told))
    return found


# What only the manager says of a unit. A service that says so of itself is quoting or lying.
_MIMICRY = late(
    r"Failed at step [A-Z_]{2,40} spawning |: Failed with result '|has been killed by the OOM killer"
    r"|: Start request repeated too quickly|\bDependency failed for "
)


def _mimics(message: str, small: str) -> bool:
    needles = ("failed at step", "failed with result", "oom killer", "too quickly", "dependency failed")
    return any(one in small for one in needles) and _MIMICRY.search(message) is not None


def _beside(message: str, start: int, end: int) -> str:
    """The file that a text in a message is about: the last that is named before it, or else the first after it."""
    before = after = ""
    for match in _PATHS.finditer(message):
        if match.end() <= start:
            before = match[0]
        elif match.start() >= end:
            after = match[0]
            break
    return (before or after).rstrip(".")


_GROUP = late(r"(?:task_memcg|oom_memcg)=(?P<path>[^,\s]{1,512})")


def _about(unit: str, entry: Entry) -> bool:
    """Whether an entry is about the unit. Kernel messages that name control groups are where one is its own."""
    if entry.origin == KERNEL:
        groups = _GROUP.findall(entry.message)
        return not groups or any(f"/{unit}/" in f"{path}/" for path in groups)
    return entry.unit in ("", unit)
