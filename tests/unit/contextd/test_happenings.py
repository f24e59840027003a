# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.sdjournal import Entry
from syntrop.contextd import happenings

CURSOR = "s=0639c7e5b1a94fe5;i=4e3a;b=ab;m=1;t=2;x=3"


def entry(**fields: str) -> Entry:
    return Entry(fields, 1_700_000_000_000_000, 5, "ab" * 16, CURSOR)


@pytest.mark.parametrize(
    ("text", "kind", "unit"),
    [
        ("Out of memory: Killed process 4242 (mysqld) total-vm:1kB, anon-rss:1kB", "oom", None),
        ("Memory cgroup out of memory: Killed process 7 (web) total-vm:9kB", "oom", None),
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
            "oom_memcg=/system.slice/web.service,task_memcg=/system.slice/web.service,task=web,pid=7,uid=33",
            "oom",
            "web.service",
        ),
        ("amdgpu 0000:03:00.0: amdgpu: GPU reset begin!", "gpu", None),
        ("i915 0000:00:02.0: [drm] GPU HANG: ecode 12:1:85dffffb, in chrome", "gpu", None),
        ("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", "gpu", None),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout", "gpu", None),
        ("blk_update_request: I/O error, dev sda, sector 12345 op 0x0:(READ)", "io", None),
        ("EXT4-fs error (device sda1): ext4_lookup:1855: inode #1: comm ls: deleted inode referenced", "io", None),
        ("XFS (dm-0): Metadata corruption detected at xfs_agi_verify", "io", None),
        ("nvme nvme0: I/O 12 QID 3 timeout, aborting", "io", None),
        ("ata1.00: failed command: READ FPDMA QUEUED", "io", None),
        ("mce: [Hardware Error]: Machine check events logged", "hardware", None),
        ("INFO: task jbd2/sda1-8:123 blocked for more than 120 seconds.", "hang", None),
        ("web[77]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so.6", "crash", None),
    ],
)
def test_what_the_kernel_says(text: str, kind: str, unit: str | None) -> None:
    draft = happenings.notable(entry(_TRANSPORT="kernel", MESSAGE=text))
    assert draft is not None
    assert (draft.source, draft.extra["k"], draft.unit, draft.private) == ("kernel", kind, unit, True)
    assert draft.time_us == 1_700_000_000_000_000
    assert draft.boot == "ab" * 16
    assert draft.extra["j"] == "0639c7e5b1a9.4e3a"


@pytest.mark.parametrize(
    "text",
    ["usb 1-1: new high-speed USB device number 2", "EXT4-fs (sda1): mounted filesystem with ordered data mode",
     "audit: type=1400", "xe 0000:00:02.0: vgaarb: deactivate vga console", "random: crng init done"],
)  # fmt: skip
def test_what_is_of_no_account(text: str) -> None:
    assert happenings.notable(entry(_TRANSPORT="kernel", MESSAGE=text)) is None


def test_states_of_units() -> None:
    failed = entry(
        MESSAGE_ID="d9b373ed55a64feb8242e02dbe79a49c",
        UNIT="web.service",
        UNIT_RESULT="exit-code",
        MESSAGE="web failed",
    )
    draft = happenings.notable(failed)
    assert draft is not None
    assert (draft.unit, draft.extra["k"], draft.extra["result"]) == ("web.service", "failed", "exit-code")
    exited = {"MESSAGE_ID": "98e322203f7a4ed290d09fe03c09fe15", "UNIT": "web.service", "EXIT_CODE": "exited"}
    assert happenings.notable(entry(**exited, EXIT_STATUS="0")) is None
    assert happenings.notable(entry(**exited, EXIT_STATUS="3")) is not None
    assert happenings.notable(entry(MESSAGE_ID="be02cf6855d2428ba40df7e9d022f03d", USER_UNIT="x.service")) is None


def test_a_coredump() -> None:
    stack = "#0  0x0 raise (libc.so.6)\n#1  0x1 main (web)"
    text = f"Process 77 (web) of user 33 dumped core.\n\nStack trace of thread 77:\n{stack}"
    draft = happenings.notable(
        entry(
            MESSAGE_ID=happenings.COREDUMP, MESSAGE=text, COREDUMP_UNIT="web.service",
            COREDUMP_EXE="/usr/sbin/web", COREDUMP_SIGNAL_NAME="SIGABRT", COREDUMP_PID="77",
        )
    )  # fmt: skip
    assert draft is not None
    assert draft.summary == "/usr/sbin/web (process 77) dumped core on SIGABRT"
    assert draft.details == stack
    assert (draft.unit, draft.private) == ("web.service", True)


def test_boots_and_flatpaks() -> None:
    boot = happenings.notable(entry(MESSAGE_ID=happenings.STARTUP_FINISHED, MESSAGE="Startup finished in 2s."))
    assert boot is not None and (boot.source, boot.extra["k"]) == ("machine", "boot")
    package = happenings.notable(
        entry(
            MESSAGE_ID=happenings.FLATPAK, OPERATION="deploy install", REF="app/a.b/x86_64/stable", COMMIT="c" * 64
        )
    )
    assert package is not None and (package.source, package.extra["n"]) == ("package", "a.b")


NAMES = sorted({name for kind in ("", *happenings.MESSAGE_IDS) for name in happenings.fields(kind)})


@given(st.dictionaries(st.sampled_from(NAMES), st.text(max_size=50)), st.text(max_size=40))
def test_no_entry_breaks_it(fields: dict[str, str], cursor: str) -> None:
    happenings.notable(Entry(fields, 1, 2, "", cursor))
