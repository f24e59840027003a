# SPDX-License-Identifier: Apache-2.0
"""What the journal tells that belongs into a chronology: entries in, drafts out. No I/O."""

from __future__ import annotations

import re

from syntrop.common.patterns import late
from syntrop.contextd import packages
from syntrop.contextd.chronology import Draft

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.sdjournal import Entry

# sd-messages.h
COREDUMP = "fc2e22bc6ee647b6b90729ab34a250b1"
STARTUP_FINISHED = "b07a249cd024414a82dd00cd181378ff"
SHUTDOWN = "98268866d1d54a499c4e98921d93bc40"
SLEEP = "6bbd95ee977941e497c48be27c254128"
FLATPAK = "c7b39b1e006b464599465e105b361485"
UNIT_STATES = {
    "39f53479d3a045ac8e11786248231fbf": "started",
    "9d1aaa27d60140bd96365438aad20286": "stopped",
    "7b05ebc668384222baa8881179cfda54": "reloaded",
    "be02cf6855d2428ba40df7e9d022f03d": "failed",
    "d9b373ed55a64feb8242e02dbe79a49c": "failed",
    "98e322203f7a4ed290d09fe03c09fe15": "exited",
    "5eb03494b6584870a536b337290809b3": "restarts",
    "fe6faa94e7774663a0da52717891d8ef": "oom",
    "d989611b15e44c9dbf31e3c81256e4ed": "oom",
}
MESSAGE_IDS = (*UNIT_STATES, COREDUMP, STARTUP_FINISHED, SHUTDOWN, SLEEP, FLATPAK)

_STATE_FIELDS = ("MESSAGE_ID", "MESSAGE", "UNIT", "UNIT_RESULT", "EXIT_CODE", "EXIT_STATUS")
_OTHER_FIELDS = {
    COREDUMP: (
        "MESSAGE_ID", "MESSAGE", "COREDUMP_UNIT", "COREDUMP_EXE", "COREDUMP_COMM", "COREDUMP_SIGNAL_NAME",
        "COREDUMP_PID",
    ),
    FLATPAK: ("MESSAGE_ID", "OPERATION", "REF", "COMMIT", "OLD_COMMIT"),
}  # fmt: skip
_STACK_LINES = 24

_KERNEL = (
    (
        "oom",
        late(
            r"(?:Memory cgroup out of memory|Out of memory)(?: \([^)]*\))?: Killed process \d+ \((?P<who>[^)]+)\)"
        ),
    ),
    ("oom", late(r"oom-kill:constraint=")),
    (
        "gpu",
        late(
            r"NVRM: Xid|amdgpu.*(?:GPU reset|ring \S+ timeout|VM_L2_PROTECTION_FAULT)|(?:i915|xe) .*(?:GPU HANG"
            r"|Resetting (?:chip|rcs|engine)|reset (?:started|done|failed)|engine reset)"
            r"|\[drm.*(?:GPU (?:hang|recovery|reset)|\*ERROR\* ring)|nouveau .*(?:fifo: fault|channel .* killed)"
        ),
    ),
    (
        "io",
        late(
            r"I/O error|critical (?:medium|target) error"
            r"|(?:EXT4-fs|BTRFS|XFS|F2FS-fs|bcachefs)[^:]*:? ?.*(?:error|corrupt)"
            r"|[Rr]emounting (?:filesystem|file system) read-only"
            r"|nvme\S*:? .*(?:timeout|reset controller|I/O \d+ QID)"
            r"|ata\d+[\d.]*: (?:failed command|hard resetting link|exception Emask)|Buffer I/O",
        ),
    ),
    (
        "hardware",
        late(r"\[Hardware Error\]|Machine [Cc]heck|mce: .*error|EDAC .*(?:CE|UE) |thermal .*critical temperature"),
    ),
    ("hang", late(r"blocked for more than \d+ seconds|soft lockup|hard LOCKUP|rcu.*detected.*stall")),
    ("crash", late(r"segfault at |traps: .* trap |general protection fault|kernel BUG at|Oops: ")),
)
_MEMCG = late(
    r"(?:task_memcg|oom_memcg)=[^,\s]*?/(?P<unit>[^/,\s]+\.(?:service|scope|mount|socket|swap))(?=[/,\s]|$)"
)


def matches() -> list[dict[str, str]]:
    """Matches under which everything notable is found."""
    return [{"MESSAGE_ID": one} for one in MESSAGE_IDS] + [{"_TRANSPORT": "kernel"}]


def fields(kind: str) -> tuple[str, ...]:
    """What is to be known of an entry with this MESSAGE_ID (kernel messages have none)."""
    if kind in UNIT_STATES:
        return _STATE_FIELDS
    return _OTHER_FIELDS.get(kind) or ("MESSAGE_ID", "MESSAGE", "_TRANSPORT")


def place(entry: Entry) -> str:
    """What no other entry has, from its cursor."""
    parts = dict(part.partition("=")[::2] for part in entry.cursor.split(";"))
    return f"{parts.get('s', '')[:12]}.{parts.get('i', '')}"


def notable(entry: Entry) -> Draft | None:
    """The entry as an event; None where it is of no account."""
    kind = entry.get("MESSAGE_ID")
    if kind in UNIT_STATES:
        return _unit_state(entry, UNIT_STATES[kind])
    if kind == COREDUMP:
        return _coredump(entry)
    if kind == FLATPAK:
        transaction = packages.flatpak(entry.fields, entry.time_us)
        return None if transaction is None else package(transaction, entry)
    if kind in (STARTUP_FINISHED, SHUTDOWN, SLEEP):
        word = {STARTUP_FINISHED: "boot", SHUTDOWN: "shutdown", SLEEP: "sleep"}[kind]
        return _draft(entry, "machine", entry.get("MESSAGE") or word, None, {"k": word})
    if entry.get("_TRANSPORT") == "kernel":
        return _kernel(entry)
    return None


def package(transaction: packages.Transaction, entry: Entry | None = None) -> Draft:
    """A package transaction as an event."""
    extra = {
        "a": transaction.action,
        "n": transaction.name,
        "v": transaction.version,
        "o": transaction.old,
        "r": transaction.architecture,
        "key": transaction.key,
    }
    if entry is not None:
        extra["j"] = place(entry)
    boot = entry.boot if entry is not None else ""
    return Draft("package", transaction.summary(), time_us=transaction.time_us, boot=boot, extra=extra)


def _draft(
    entry: Entry,
    source: str,
    summary: str,
    unit: str | None,
    extra: dict[str, str],
    *,
    details: str | None = None,
    private: bool = False,
) -> Draft:
    return Draft(
        source,
        summary.split("\n", 1)[0],
        time_us=entry.time_us,
        unit=unit,
        details=details,
        boot=entry.boot,
        private=private,
        extra={**extra, "j": place(entry)},
    )


def _unit_state(entry: Entry, state: str) -> Draft | None:
    unit = entry.get("UNIT")
    if not unit:
        return None  # of a user's manager
    extra = {"k": state}
    if state == "failed":
        extra["result"] = entry.get("UNIT_RESULT")
    if state == "exited":
        extra["result"] = f"{entry.get('EXIT_CODE')} {entry.get('EXIT_STATUS')}".strip()
        if extra["result"] in ("exited 0", ""):
            return None
    return _draft(entry, "unit", entry.get("MESSAGE") or f"{unit} {state}", unit, extra)


def _coredump(entry: Entry) -> Draft:
    text = entry.get("MESSAGE")
    program = entry.get("COREDUMP_EXE") or entry.get("COREDUMP_COMM") or "a process"
    signal = entry.get("COREDUMP_SIGNAL_NAME") or "a signal"
    stack = [line.strip() for line in text.split("\n") if line.lstrip().startswith("#")][:_STACK_LINES]
    return _draft(
        entry,
        "coredump",
        f"{program} (process {entry.get('COREDUMP_PID', '?')}) dumped core on {signal}",
        entry.get("COREDUMP_UNIT") or None,
        {"k": "coredump", "exe": program},
        details="\n".join(stack) or None,
        private=True,
    )


def _kernel(entry: Entry) -> Draft | None:
    text = entry.get("MESSAGE")
    for kind, pattern in _KERNEL:
        if pattern.search(text):
            group = _MEMCG.search(text)
            unit = group["unit"] if group else None
            summary = f"kernel: {text}"
            if text.startswith("oom-kill:"):
                task = re.search(r"task=([^,]+),pid=(\d+)", text)
                who = f"{task[1]} (process {task[2]})" if task else "a process"
                summary = f"kernel: out of memory, killed {who}" + (f" of {unit}" if unit else "")
            return _draft(entry, "kernel", summary, unit, {"k": kind}, details=text, private=True)
    return None
