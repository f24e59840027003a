# SPDX-License-Identifier: Apache-2.0
"""What has nothing to do with a failure: changes and words for which nothing is done."""

from __future__ import annotations

import captured
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import CLASSES, KEY, both, drop_in, file, judged, oom

from syntrop.sentry import evidence, remedy, signatures, verdict
from syntrop.sentry.evidence import Change, Evidence, Exit, Facts
from syntrop.toold import catalog


def crashed(change: Change | None = None, *, started_s: float = 0.0) -> Evidence:
    """A crash at second 1000, of a unit that became active at `started_s`."""
    return Evidence(
        "web.service", failed_us=1_000_000_000, exit=Exit("signal", evidence.KILLED, 11),
        facts=Facts(started_us=int(started_s * 1e6)), changes=[change] if change is not None else [],
    )  # fmt: skip


def test_a_change_that_it_ran_well_with_is_not_to_blame_for_a_crash() -> None:
    change = drop_in(crashed(), "[Service]\nEnvironment=A=1", before_s=600)
    assert judged(crashed(change))[1].name == remedy.REVERT_DROP_IN
    assert judged(crashed(change, started_s=999))[1].name == remedy.REVERT_DROP_IN
    cause, action, done = judged(crashed(change, started_s=500))
    assert (cause.fault_class, action.name, done) == (signatures.CRASH, remedy.RESTART, verdict.ACT)


def test_a_change_whose_before_nobody_knows_says_little() -> None:
    known = file(crashed(), "/etc/web.conf", "-a\n+b")
    parts = {name: getattr(known, name) for name in known.__slots__ if name not in ("summary", "id")}
    unknown = Change("d1", **parts, summary="/etc/web.conf changed before it was watched")
    assert judged(crashed(known))[0].fault_class == signatures.CONFIGURATION
    assert judged(crashed(unknown))[0].fault_class == signatures.CRASH
    # The likelier of two is told, whatever their order.
    both_of_them = Evidence(
        "web.service", failed_us=1_000_000_000, exit=Exit("signal", evidence.KILLED, 11),
        changes=[unknown, Change("d2", **parts, summary="/etc/web.conf changed")],
    )  # fmt: skip
    assert judged(both_of_them)[0].change == "d2"


@both
def test_a_drop_in_that_held_more_is_not_removed_unasked(release: str) -> None:
    bare = captured.captured(release, "fd_limit")
    for old, done in (("", verdict.ACT), ("# a note", verdict.ACT), ("LimitNOFILE=4096", verdict.STAGE)):
        change = drop_in(bare, "[Service]\nLimitNOFILE=16", old=old)
        told = judged(captured.captured(release, "fd_limit", changes=[change]))
        assert (told[1].name, told[2]) == (remedy.REVERT_DROP_IN, done)


def test_an_old_limit_is_not_removed_unasked_however_sure_the_cause() -> None:
    bare = oom()
    old = Evidence(
        bare.unit, failed_us=bare.failed_us, exit=bare.exit, facts=bare.facts, entries=bare.entries,
        counters=bare.counters, changes=[drop_in(bare, "[Service]\nMemoryMax=64M", before_s=8 * 3600)],
    )  # fmt: skip
    cause, action, done = judged(old)
    assert cause.confidence >= verdict.ACT_AT
    assert (action.name, done) == (remedy.REVERT_DROP_IN, verdict.STAGE)


CUT = ("MemoryMax=24M", "MemoryMax=512M")


@pytest.mark.parametrize(
    ("name", "new", "old", "value"),
    [
        # Given back at run time: of a drop-in that holds more, one of the template, the unit file itself.
        ("/etc/systemd/system/web@a.service.d/10-limits.conf", *CUT, "512M"),
        ("/etc/systemd/system/web@.service.d/10-limits.conf", *CUT, "512M"),
        ("/etc/systemd/system/web@a.service", *CUT, "512M"),
        ("/etc/systemd/system/web@a.service.d/10.conf", "MemoryHigh = 9M", "MemoryHigh = infinity", "infinity"),
        ("/etc/systemd/system/web@a.service.d/10.conf", "Nice=1\nMemorySwapMax=0", "MemorySwapMax=1G", "1G"),
        # It would not outlive the next reload: systemd takes the last drop-in by name.
        ("/etc/systemd/system/web@a.service.d/90-limits.conf", *CUT, ""),
        ("/etc/systemd/system/web@a.service.d/limits.conf", *CUT, ""),
        # What was before is not known, or cannot be said so, or is the same.
        ("/etc/systemd/system/web@a.service.d/10.conf", "MemoryMax=24M", "", ""),
        ("/etc/systemd/system/web@a.service.d/10.conf", "MemoryMax=24M", "MemoryMax=40%", ""),
        ("/etc/systemd/system/web@a.service.d/10.conf", "MemoryMax=24M", "MemoryMax=1G\nMemoryMax=2G", ""),
        ("/etc/systemd/system/web@a.service.d/10.conf", "MemoryMax=24M", "MemoryMax=24M", ""),
        ("/etc/systemd/system/web@a.service.d/10.conf", "MemoryMax=24M", "MemoryMax=", ""),
        # Only taken at a start.
        ("/etc/systemd/system/web@a.service.d/10.conf", "LimitNOFILE=16", "LimitNOFILE=4096", ""),
    ],
)  # fmt: skip
def test_a_limit_that_was_edited_is_given_back_at_run_time_where_that_lasts(
    name: str, new: str, old: str, value: str
) -> None:
    lines = [f"-{line}" for line in old.splitlines()] + [f"+{line}" for line in new.splitlines()]
    role = "drop-in" if name.endswith(".conf") else "unit file"
    for age, done in ((60, verdict.ACT), (8 * 3600, verdict.STAGE)):
        bare = oom(name="web@a.service")
        change = Change(
            "d1", path=name, time_us=bare.failed_us - age * 1_000_000, diff="\n".join(lines),  # type: ignore[operator]
            summary=f"{name} changed", reason=f"{role} of web@a.service, 1 min before it failed",
        )  # fmt: skip
        found = Evidence(
            bare.unit, failed_us=bare.failed_us, exit=bare.exit, facts=bare.facts, entries=bare.entries,
            counters=bare.counters, changes=[change],
        )  # fmt: skip
        cause, action, decided = judged(found)
        assert cause.fault_class == signatures.MEMORY_LIMIT
        if not value:
            assert action.name != remedy.SET_PROPERTY
            continue
        setting = new.splitlines()[-1].partition("=")[0].strip()
        assert (action.name, decided) == (remedy.SET_PROPERTY, done)
        assert action.steps == (
            remedy.Step("set_unit_property", [setting, value], "web@a.service"),
            remedy.Step("unit_restart", [], "web@a.service"),
        )
        assert action.writes
        # What it is about is looked at once more before it is done.
        assert remedy.about(action, cause, found) == [name]
        call = catalog.parse(catalog.find("set_unit_property"), action.steps[0].args, "web@a.service")
        assert call.tool.mode == catalog.REMEDIATION


@pytest.mark.parametrize(
    "words",
    ["web.service: Failed at step EXEC spawning /usr/bin/web: No such file or directory",
     "web.service: Failed with result 'oom-kill'. No space left on device",
     "Dependency failed for web.service: Connection refused"],
)  # fmt: skip
def test_what_a_service_words_as_the_manager_does_is_not_heard(words: str) -> None:
    entry = evidence.entry(1, {"_PID": "7", "MESSAGE": words, "_SYSTEMD_UNIT": "web.service"}, KEY)
    found = Evidence("web.service", exit=Exit("signal", evidence.KILLED, 6), entries=[entry])
    assert signatures.scan(found) == []
    assert judged(found)[0].fault_class == signatures.CRASH


@pytest.mark.parametrize(
    ("settings", "old", "blamed"),
    [("[Service]\nNice=1", "", False), ("[Service]\nNice=2", "Nice=1", False), ("# a note", "# another", False),
     ("[Service]\nNice=1\nEnvironment=A=1", "", True), ("Nice=1", "Environment=A=1", True)],
)  # fmt: skip
def test_settings_that_nothing_fails_of_are_not_blamed(settings: str, old: str, blamed: bool) -> None:
    cause, *_ = judged(crashed(drop_in(crashed(), settings, old=old)))
    assert (cause.fault_class == signatures.CONFIGURATION) is blamed


def test_a_comment_in_a_configuration_is_not_blamed_and_another_line_is() -> None:
    for diff, blamed in (("+# as agreed", False), ("+# as agreed\n+port = 0", True), ("+Nice=1", True)):
        cause, *_ = judged(crashed(file(crashed(), "/etc/web.conf", diff)))
        assert (cause.fault_class == signatures.CONFIGURATION) is blamed


WORDS = (
    "bind: Address already in use", "accept: Too many open files", "write: No space left on device",
    "mkdir /var/lib/web: Read-only file system", "open /etc/web.conf: Permission denied",
    "/etc/web.conf: No such file or directory", "error while loading shared libraries: liba.so: cannot open",
    "ModuleNotFoundError: No module named 'web'", "connect: Connection refused",
    "configuration error in /etc/web.conf:3", "Unknown directive 'lisen'", "certificate is not yet valid",
    "configuration error in /etc/systemd/system/web.service.d/50-tuning.conf:2",
    "open /etc/systemd/system/web.service.d/50-tuning.conf: Permission denied",
    "/etc/systemd/system/web.service.d/50-tuning.conf: No such file or directory",
)  # fmt: skip


@given(
    st.lists(st.sampled_from(WORDS), max_size=6),
    st.sampled_from([("signal", evidence.KILLED, 6), ("exit-code", evidence.EXITED, 1), ("success", "", 0)]),
    st.sampled_from(["Environment=A=1", "Nice=1", "ExecReload=/bin/true", "RestartSec=1"]),
)
def test_whatever_a_service_says_no_drop_in_is_removed_unasked_that_has_nothing_to_do_with_it(
    said: list[str], left: tuple[str, str, int], setting: str
) -> None:
    entries = [
        evidence.entry(n, {"_PID": "7", "MESSAGE": words, "_SYSTEMD_UNIT": "web.service"}, KEY)
        for n, words in enumerate(said, 1)
    ]
    bare = crashed()
    found = Evidence(
        "web.service", failed_us=bare.failed_us, exit=Exit(*left), entries=entries,
        changes=[drop_in(bare, f"[Service]\n{setting}")],
    )  # fmt: skip
    _, action, done = judged(found)
    assert done != verdict.ACT or not action.writes


UNIT_FILE = (
    "[Unit]\nDescription=Web\n[Service]\nType=exec\nExecStart=/usr/bin/web\nUser=web\n[Install]\nWantedBy=x.target"
)


@pytest.mark.parametrize(
    ("text", "summary", "left", "blamed"),
    [
        # Its unit file has just been written: it never ran otherwise.
        (UNIT_FILE, "was created (120 bytes)", ("signal", evidence.KILLED, 11), False),
        (UNIT_FILE, "was created (120 bytes)", ("core-dump", evidence.DUMPED, 8), False),
        ("", "was replaced by the same", ("signal", evidence.KILLED, 11), False),
        ("", "was replaced by the same", ("exit-code", evidence.EXITED, 1), False),
        # It may not like its options, or assert something of its settings.
        (UNIT_FILE, "was created (120 bytes)", ("exit-code", evidence.EXITED, 1), True),
        (UNIT_FILE, "was created (120 bytes)", ("signal", evidence.KILLED, 6), True),
        # It ran otherwise before.
        ("[Service]\nExecStart=/usr/bin/webb", "changed", ("signal", evidence.KILLED, 11), True),
        # Nothing that a program could fail of.
        ("[Service]\nRestart=always\nRestartSec=5\n[Install]\nWantedBy=x.target", "changed",
         ("signal", evidence.KILLED, 11), False),
    ],
)  # fmt: skip
def test_a_program_that_traps_is_not_a_fault_of_a_unit_file_it_has_always_run_with(
    text: str, summary: str, left: tuple[str, str, int], blamed: bool
) -> None:
    path = "/etc/systemd/system/web.service"
    diff = "\n".join(f"+{line}" for line in text.splitlines())
    change = file(crashed(), path, diff, role="unit file", summary=f"{path} {summary}")
    found = Evidence("web.service", failed_us=1_000_000_000, exit=Exit(*left), changes=[change])
    cause, action, done = judged(found)
    if blamed:
        assert (cause.fault_class, done) == (signatures.CONFIGURATION, verdict.REPORT)
    else:
        assert (cause.fault_class, action.name, done) == (signatures.CRASH, remedy.RESTART, verdict.ACT)


def test_a_new_drop_in_is_a_change_of_what_it_ran_with() -> None:
    change = drop_in(crashed(), "[Service]\nEnvironment=A=1")
    parts = {name: getattr(change, name) for name in change.__slots__ if name != "summary"}
    cause, *_ = judged(crashed(Change(**parts, summary=f"{change.path} was created (30 bytes)")))
    assert cause.fault_class == signatures.CONFIGURATION


@pytest.mark.parametrize(
    ("left", "limited", "expected"),
    [
        (("signal", evidence.KILLED, 11), False, (signatures.CRASH, remedy.RESTART, verdict.ACT)),
        (("exit-code", evidence.EXITED, 1), False, (signatures.DESCRIPTOR_LIMIT, remedy.NONE, verdict.REPORT)),
        (("signal", evidence.KILLED, 11), True, (signatures.DESCRIPTOR_LIMIT, remedy.REVERT_DROP_IN, verdict.ACT)),
    ],
)
def test_words_on_descriptors_before_a_trap_count_where_the_limit_was_changed(
    left: tuple[str, str, int], limited: bool, expected: tuple[str, str, str]
) -> None:
    fields = {"_PID": "7", "MESSAGE": "accept: Too many open files", "_SYSTEMD_UNIT": "web.service"}
    found = Evidence(
        "web.service",
        failed_us=1_000_000_000,
        exit=Exit(*left),
        entries=[evidence.entry(1, fields, KEY)],
        changes=[drop_in(crashed(), "[Service]\nLimitNOFILE=16")] if limited else [],
    )
    cause, action, done = judged(found)
    assert (cause.fault_class, action.name, done) == expected


@both
@pytest.mark.parametrize("name", ["plain_crash_segv", "plain_exit_1", "fd_limit", "port_taken", "execstart_typo"])
def test_a_unit_that_was_collected_is_told_of_and_left_alone(release: str, name: str) -> None:
    """What `systemd-run` made is gone when it ends: the journal tells why, and nothing is there to be started."""
    gone = Facts(load="not-found", active="inactive", type="")
    cause, action, done = judged(captured.captured(release, name, facts=gone))
    assert cause.fault_class == CLASSES[name]
    assert (action.name, action.steps, done) == (remedy.NONE, (), verdict.REPORT)
    assert "is gone" in action.reason
    # Nor is a file reverted for it.
    bare = captured.captured(release, "execstart_typo")
    change = drop_in(bare, "[Service]\nExecStart=\nExecStart=/usr/bin/sleepp 600")
    told = captured.captured(release, "execstart_typo", facts=gone, changes=[change])
    assert judged(told)[1].name == remedy.NONE


def test_a_unit_that_is_gone_and_of_which_nothing_is_known() -> None:
    cause, action, done = judged(Evidence("run-u1.service", facts=Facts(load="not-found", active="inactive")))
    assert (cause.fault_class, action.name, done) == (signatures.UNKNOWN, remedy.NONE, verdict.REPORT)
    assert cause.explanation == "run-u1.service is gone, and nothing tells why"


@both
def test_the_drop_in_that_tells_us_of_failures_is_not_blamed_for_them(release: str) -> None:
    found = captured.captured(release, "plain_crash_segv")
    told_by = Change(
        "d1",
        path="/etc/systemd/system/service.d/50-syntrop-triage.conf",
        time_us=(found.failed_us or 0) - 1_000_000,
        diff="+[Unit]\n+OnFailure=syntrop-triage@%n.service",
        reason=f"drop-in of {found.unit}, 1 s before it failed",
    )
    cause, action, done = judged(captured.captured(release, "plain_crash_segv", changes=[told_by]))
    assert (cause.fault_class, action.name, done) == (signatures.CRASH, remedy.RESTART, verdict.ACT)
