# SPDX-License-Identifier: Apache-2.0
"""The catalogue: for each incident the right cause, and the right action or the right restraint.

What systemd says is captured from systemd itself (252 and 257); what contextd would add is written in its form.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import captured
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import CLASSES, KEY, both, drop_in, file, judged, oom, package

from syntrop.sentry import causes, cleaning, evidence, remedy, signatures, verdict
from syntrop.sentry.evidence import Change, Counter, Evidence, Exit, Facts, Neighbour


def test_every_captured_failure_has_its_class_here() -> None:
    assert sorted(CLASSES) == captured.names() == sorted(captured.incidents("252"))


@both
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_the_class_is_found_from_what_systemd_says_and_cites_it(release: str, name: str) -> None:
    found = captured.captured(release, name)
    cause, action, done = judged(found)
    assert cause.fault_class == CLASSES[name]
    assert cause.fault_class in signatures.FAULT_CLASSES
    assert cause.evidence
    assert all(id in found for id in cause.evidence)
    # Nothing is known to have changed: at most it is started again.
    assert not action.writes
    if done == verdict.ACT:
        assert action.name == remedy.RESTART
        assert cause.fault_class in (signatures.CRASH, signatures.WATCHDOG, signatures.TIMEOUT)


# With what contextd knows: the catalogue.


@both
@pytest.mark.parametrize(
    ("name", "setting", "fault_class"),
    [
        ("execstart_typo", "[Service]\nExecStart=\nExecStart=/usr/bin/sleepp 600", signatures.MISSING_PROGRAM),
        ("fd_limit", "[Service]\nLimitNOFILE=16", signatures.DESCRIPTOR_LIMIT),
        ("missing_envfile", "[Service]\nEnvironmentFile=/etc/default/nosuch", signatures.MISSING_FILE),
        ("missing_rwpath", "[Service]\nReadWritePaths=/srv/nosuch", signatures.MISSING_FILE),
        ("missing_user", "[Service]\nUser=nosuchuser", signatures.EXECUTION_CONTEXT),
        ("bad_syscall", "[Service]\nSystemCallFilter=~mkdir mkdirat", signatures.SYSTEM_CALL),
        ("readonly_fs", "[Service]\nProtectSystem=strict", signatures.READ_ONLY),
        ("start_timeout", "[Service]\nTimeoutStartSec=1", signatures.TIMEOUT),
        ("watchdog", "[Service]\nWatchdogSec=1", signatures.WATCHDOG),
    ],
)
def test_the_drop_in_that_brought_it_about_is_reverted(
    release: str, name: str, setting: str, fault_class: str
) -> None:
    bare = captured.captured(release, name)
    cause, action, done = judged(captured.captured(release, name, changes=[drop_in(bare, setting)]))
    assert (cause.fault_class, cause.change, done) == (fault_class, "d1", verdict.ACT)
    assert action.name == remedy.REVERT_DROP_IN
    path = f"/etc/systemd/system/{bare.unit}.d/50-tuning.conf"
    assert action.steps[0] == remedy.Step("revert_dropin", ["50-tuning.conf", path], bare.unit)
    assert action.steps[-1] == remedy.Step("unit_restart", [], bare.unit)


@both
def test_a_drop_in_that_breaks_the_unit_file_is_reverted(release: str) -> None:
    bare = captured.captured(release, "syntax_dropin_badsetting")
    change = drop_in(bare, "[Service]\nType=simpel\nExecStart=", name="50-bad.conf")
    cause, action, done = judged(captured.captured(release, "syntax_dropin_badsetting", changes=[change]))
    assert (cause.fault_class, action.name, done) == (signatures.UNIT_SYNTAX, remedy.REVERT_DROP_IN, verdict.ACT)
    assert cause.subject == change.path


@both
def test_a_unit_file_in_etc_that_is_broken_is_reported(release: str) -> None:
    bare = captured.captured(release, "syntax_garbage")
    path = f"/etc/systemd/system/{bare.unit}"
    change = file(bare, path, "+this is no assignment\n+[Unit", role="unit file")
    cause, action, done = judged(
        captured.captured(release, "syntax_garbage", changes=[change], copies={path: "x.bak"})
    )
    assert (cause.fault_class, action.name, done) == (signatures.UNIT_SYNTAX, remedy.NONE, verdict.REPORT)


def test_a_memory_limit_that_was_cut_is_put_back() -> None:
    cause, action, done = judged(oom("[Service]\nMemoryMax=64M"))
    assert (cause.fault_class, action.name, done) == (signatures.MEMORY_LIMIT, remedy.REVERT_DROP_IN, verdict.ACT)
    assert "g1" in cause.evidence
    assert cause.confidence > 0.95


def test_a_memory_limit_that_nobody_touched_is_a_restart() -> None:
    cause, action, done = judged(oom())
    assert (cause.fault_class, action.name, done) == (signatures.MEMORY_LIMIT, remedy.RESTART, verdict.ACT)


def test_another_units_kill_is_not_this_ones() -> None:
    other = oom(name="web.service").entries[:2]
    found = Evidence("db.service", exit=Exit("exit-code", evidence.EXITED, 1), entries=other)
    assert judged(found)[0].fault_class != signatures.MEMORY_LIMIT


@both
def test_a_configuration_that_was_edited_into_nonsense_waits_for_a_person(release: str) -> None:
    bare = captured.captured(release, "config_nonsense_python")
    change = file(bare, "/etc/app/app.toml", "@@ -1 +1 @@\n-port = 80\n+port = not a port")
    without = judged(captured.captured(release, "config_nonsense_python", changes=[change]))
    assert (without[0].fault_class, without[1].name, without[2]) == (
        signatures.CONFIGURATION, remedy.NONE, verdict.REPORT,
    )  # fmt: skip
    cause, action, done = judged(
        captured.captured(
            release, "config_nonsense_python", changes=[change], copies={"/etc/app/app.toml": "app.toml.orig"}
        )
    )
    assert (cause.fault_class, action.name, done) == (signatures.CONFIGURATION, remedy.RESTORE_FILE, verdict.STAGE)
    assert action.steps[0].args == ("/etc/app/app.toml", "app.toml.orig")
    assert cause.confidence >= verdict.ACT_AT


@both
def test_a_port_that_is_taken_is_left_to_who_has_it(release: str) -> None:
    cause, action, done = judged(captured.captured(release, "port_taken"))
    assert (cause.fault_class, action.name, done) == (signatures.PORT_TAKEN, remedy.NONE, verdict.REPORT)


@both
@pytest.mark.parametrize(("name", "root"), [("dependency_down", "cap-depbase"), ("bindsto_gone", "cap-bound")])
def test_a_victim_waits_for_its_root(release: str, name: str, root: str) -> None:
    cause, action, done = judged(captured.captured(release, name))
    assert (cause.fault_class, cause.subject) == (signatures.DEPENDENCY, f"{root}.service")
    assert (action.name, done) == (remedy.WAIT_FOR_ROOT, verdict.REPORT)
    assert cause.confidence >= verdict.ACT_AT


@both
def test_refused_connections_and_a_failed_neighbour_are_one_story(release: str) -> None:
    near = [Neighbour("n1", "postgresql.service", active="failed", result="exit-code")]
    cause, _, _ = judged(captured.captured(release, "connection_refused", neighbours=near))
    assert (cause.fault_class, cause.subject) == (signatures.DEPENDENCY, "postgresql.service")
    assert cause.confidence > 0.8


@both
@pytest.mark.parametrize("name", ["plain_crash_abort", "plain_crash_segv", "plain_exit_1", "template_instance"])
def test_a_plain_crash_is_a_restart_of_this_unit_only(release: str, name: str) -> None:
    found = captured.captured(release, name)
    cause, action, done = judged(found)
    assert (cause.fault_class, done) == (signatures.CRASH, verdict.ACT)
    assert action.steps == (remedy.Step("unit_restart", [], found.unit),)


@both
def test_flapping_is_not_restarted_once_more(release: str) -> None:
    cause, action, done = judged(captured.captured(release, "flapping"))
    assert (cause.fault_class, action.name, done) == (signatures.FLAPPING, remedy.NONE, verdict.REPORT)


@both
def test_flapping_whose_cause_is_a_drop_in_is_cured_by_its_revert(release: str) -> None:
    text = captured.incidents(release)["flapping"]
    said = {"_SYSTEMD_UNIT": text["unit"], "_PID": "77", "__CURSOR": "x", "MESSAGE": "accept: Too many open files"}
    worse = {**text, "entries": [*text["entries"], said]}
    bare = captured.of_unit(worse)
    found = captured.of_unit(worse, changes=[drop_in(bare, "[Service]\nLimitNOFILE=16")])
    cause, action, done = judged(found)
    assert (cause.fault_class, done) == (signatures.DESCRIPTOR_LIMIT, verdict.ACT)
    assert [step.tool for step in action.steps] == ["revert_dropin", "unit_reset_failed", "unit_restart"]


@both
@pytest.mark.parametrize("name", ["plain_crash_segv", "plain_crash_abort", "shared_library"])
def test_a_crash_after_an_upgrade_names_the_package_and_does_nothing(release: str, name: str) -> None:
    bare = captured.captured(release, name)
    near = [package(bare, "libfoo1", "package of /usr/lib/libfoo.so.1, which app loads, 10 min before")]
    cause, action, done = judged(captured.captured(release, name, packages=near))
    assert (cause.fault_class, cause.subject) == (signatures.PACKAGE_UPGRADE, "libfoo1")
    assert (action.name, done) == (remedy.NONE, verdict.REPORT)
    assert "2.0-3" in cause.explanation
    assert "2.1-1" in cause.explanation


@both
def test_an_unrelated_upgrade_does_not_keep_from_a_restart(release: str) -> None:
    bare = captured.captured(release, "plain_crash_segv")
    far = [package(bare, "tzdata", "package without known relation, 10 min before it failed")]
    assert judged(captured.captured(release, "plain_crash_segv", packages=far))[1].name == remedy.RESTART


@both
def test_a_full_disk_is_told_and_only_a_cache_may_be_cleared(release: str) -> None:
    assert judged(captured.captured(release, "state_dir_full"))[1].name == remedy.NONE
    full = [Counter("g1", "free_bytes /var", 0)]
    cause, action, done = judged(
        captured.captured(release, "state_dir_full", counters=full, facts=Facts(active="failed", cache=True))
    )
    assert (cause.fault_class, action.name, done) == (signatures.DISK_FULL, remedy.CLEAR_CACHE, verdict.STAGE)
    assert cause.confidence > 0.95


@both
def test_a_mode_that_changed_explains_what_is_denied(release: str) -> None:
    bare = captured.captured(release, "permission_state")
    change = file(bare, "/var/lib/capstate", "mode 0750 became 0700\nowner 33:33 became 0:0")
    cause, action, done = judged(captured.captured(release, "permission_state", changes=[change]))
    assert (cause.fault_class, cause.change) == (signatures.PERMISSION, "d1")
    assert cause.confidence >= verdict.ACT_AT
    assert (action.name, done) == (remedy.NONE, verdict.REPORT)


@both
@pytest.mark.parametrize("name", ["manual_stop", "stop_timeout", "killed_9", "recovers", "condition_failed"])
def test_what_was_wanted_or_is_over_is_let_be(release: str, name: str) -> None:
    _, action, done = judged(captured.captured(release, name))
    assert (action.name, done) == (remedy.NONE, verdict.REPORT)


@both
def test_a_failed_job_is_run_again_only_when_a_person_says_so(release: str) -> None:
    cause, action, done = judged(captured.captured(release, "oneshot_fail"))
    assert (cause.fault_class, action.name, done) == (signatures.JOB_FAILED, remedy.RESTART, verdict.STAGE)


@both
def test_a_templates_drop_in_is_reverted_when_a_person_says_so(release: str) -> None:
    bare = captured.captured(release, "template_instance")
    path = "/etc/systemd/system/cap-site@.service.d/10-x.conf"
    change = Change(
        "d1", path=path, time_us=(bare.failed_us or 0) - 10**6, diff="+LimitNOFILE=16", summary=f"{path} changed",
        reason=f"drop-in of {bare.unit}, 1 s before it failed",
    )  # fmt: skip
    text = captured.incidents(release)["template_instance"]
    said = {"_SYSTEMD_UNIT": text["unit"], "_PID": "7", "MESSAGE": "EMFILE"}
    _, action, done = judged(captured.of_unit({**text, "entries": [*text["entries"], said]}, changes=[change]))
    assert done == verdict.STAGE  # other instances live with it
    assert action.steps[0] == remedy.Step("revert_dropin", ["10-x.conf", path], "cap-site@bad.service")


@both
def test_a_clock_that_jumped_is_seen_and_what_rests_on_time_is_believed_less(release: str) -> None:
    text = captured.incidents(release)["fd_limit"]
    half = len(text["entries"]) // 2
    moved = [
        {**one, "__REALTIME_TIMESTAMP": str(int(one["__REALTIME_TIMESTAMP"]) - 3600 * 10**6)} if n > half else one
        for n, one in enumerate(text["entries"])
    ]
    skewed = {**text, "entries": moved}
    bare = captured.of_unit(skewed)
    assert 3599 * 10**6 < bare.clock_jump_us() < 3601 * 10**6
    # The change lies "after" the failure by the clock that was set back, and is still taken for its cause.
    change = drop_in(bare, "[Service]\nLimitNOFILE=16", before_s=-1800)
    cause, _, done = judged(captured.of_unit(skewed, changes=[change]))
    assert (cause.fault_class, cause.change, done) == (signatures.DESCRIPTOR_LIMIT, "d1", verdict.STAGE)


@both
def test_a_change_after_the_failure_explains_nothing(release: str) -> None:
    bare = captured.captured(release, "fd_limit")
    later = drop_in(bare, "[Service]\nLimitNOFILE=16", before_s=-30)
    cause, action, _ = judged(captured.captured(release, "fd_limit", changes=[later]))
    assert cause.change == ""
    assert not action.writes


@both
def test_an_old_change_waits_for_a_person(release: str) -> None:
    bare = captured.captured(release, "fd_limit")
    old = drop_in(bare, "[Service]\nLimitNOFILE=16", before_s=8 * 3600)
    _, action, done = judged(captured.captured(release, "fd_limit", changes=[old]))
    assert (action.name, done) == (remedy.REVERT_DROP_IN, verdict.STAGE)


@both
def test_another_setting_of_a_changed_drop_in_is_not_to_blame_for_it(release: str) -> None:
    bare = captured.captured(release, "fd_limit")
    other = drop_in(bare, "[Service]\nNice=5")
    cause, action, _ = judged(captured.captured(release, "fd_limit", changes=[other]))
    assert cause.fault_class == signatures.DESCRIPTOR_LIMIT
    assert not action.writes


@both
def test_an_edit_that_no_text_tells_of_is_open_and_a_model_may_settle_it(release: str) -> None:
    bare = captured.captured(release, "plain_exit_1")
    change = file(bare, "/etc/app/app.conf", "-workers = 4\n+workers = 0")
    found = captured.captured(release, "plain_exit_1", changes=[change])
    ranked = causes.candidates(found, signatures.scan(found))
    assert {one.fault_class for one in ranked[:2]} == {signatures.CONFIGURATION, signatures.CRASH}
    assert ranked[0].confidence < verdict.ACT_AT
    assert ranked[0].confidence - ranked[1].confidence < verdict.REACH


SAYINGS = st.sampled_from(
    [
        "Too many open files", "Address already in use", "No space left on device",
        "Permission denied: '/etc/shadow'",
        "web.service: Failed with result 'oom-kill'.", "web.service: Start request repeated too quickly.",
        "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/system.slice/web.service,task=web,pid=1",
        "web.service: Failed at step EXEC spawning /usr/bin/x: No such file or directory",
        "web.service: Failed to load environment files: No such file or directory", "invalid configuration",
        "web.service: Sent signal SIGKILL to main process 1 (web) on client request.",
        "error while loading shared libraries: libx.so: cannot open", "Dependency failed for web.service.",
    ]
)  # fmt: skip


@given(st.lists(st.tuples(SAYINGS, st.booleans()), max_size=12), st.integers(1, 255), st.booleans())
def test_whatever_a_service_says_nothing_is_written_without_a_change(
    said: Sequence[tuple[str, bool]], status: int, known: bool
) -> None:
    """A service can say anything, even in systemd's words and with systemd's fields: it moves no file by that."""
    entries: list[evidence.Entry] = []
    for number, (text, posing) in enumerate(said, 1):
        fields: dict[str, str] = {"_PID": "4711", "_SYSTEMD_UNIT": "web.service", "MESSAGE": text}
        if posing:
            fields |= {"UNIT": "web.service", "MESSAGE_ID": evidence.SPAWN_FAILED, "UNIT_RESULT": "oom-kill"}
        entries.append(evidence.entry(number, fields, KEY))
    found = Evidence(
        "web.service",
        exit=Exit("exit-code", evidence.EXITED, status),
        facts=Facts(active="failed", cache=False),
        entries=entries,
        context_known=known,
    )
    cause, action, done = judged(found)
    assert not action.writes
    assert all(id in found for id in cause.evidence)
    assert cause.fault_class not in (signatures.MEMORY_LIMIT, signatures.STOPPED_BY_HAND, signatures.FLAPPING)
    if done == verdict.ACT:
        assert action.name == remedy.RESTART


FIELDS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["MESSAGE", "_PID", "UNIT", "PRIORITY", "MESSAGE_ID", "_TRANSPORT", "__REALTIME_TIMESTAMP"]),
    st.text(max_size=60),
)


@given(st.lists(FIELDS, max_size=80), st.sampled_from(["", "success", "exit-code", "signal", "timeout", "x"]))
def test_any_journal_gives_ranked_causes_that_cite_what_is_there(
    journal: list[dict[str, Any]], result: str
) -> None:
    entries = [evidence.entry(number, fields, KEY) for number, fields in enumerate(journal, 1)]
    found = Evidence("web.service", exit=Exit(result, evidence.EXITED, 1), entries=entries)
    ranked = causes.candidates(found, signatures.scan(found))
    assert 1 <= len(ranked) <= causes.CAUSES_MAX
    assert all(0.0 <= one.confidence <= causes.SURE for one in ranked)
    assert [one.confidence for one in ranked] == sorted((one.confidence for one in ranked), reverse=True)
    assert all(id in found for one in ranked for id in one.evidence)
    assert len(found.entries) <= evidence.ENTRIES_MAX


@pytest.mark.parametrize("part", ["/", "/a", "(", "Failed ", "/etc/x: ", "in /a:", "error ", "no such file /"])
def test_no_line_takes_long(part: str) -> None:
    """Where a pattern took more than a time in proportion to the line, this would take minutes."""
    needles = " ".join(needle for one in signatures.SIGNATURES for needle in one.needles)
    lines = [(part * 512)[: cleaning.MESSAGE_MAX], f"{needles} {part * 512}"[: 4 * cleaning.MESSAGE_MAX]]
    for line in lines:
        for origin in (evidence.SERVICE, evidence.SPAWN, evidence.MANAGER, evidence.KERNEL):
            entries = [
                evidence.Entry(f"j{number}", cursor="", message=f"{number} {line}", origin=origin)
                for number in range(evidence.ENTRIES_MAX)
            ]
            signatures.scan(Evidence("web.service", entries=entries))


# What programs write, by the signature that must find it, and what it is about.
SAID = [
    ("address-in-use", "nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)", ""),
    ("address-in-use", "Error: listen EADDRINUSE: address already in use :::3000", ""),
    ("descriptors", "accept4() failed (24: Too many open files)", ""),
    ("descriptors", "Error: EMFILE: too many open files, open '/srv/x'", ""),
    ("no-space", "ENOSPC: no space left on device, write", ""),
    ("no-space", "write /var/lib/db/000012.log: disk quota exceeded", ""),
    ("read-only", "open /var/lib/db/LOCK: read-only file system", ""),
    ("denied", 'open() "/var/log/nginx/access.log" failed (13: Permission denied)', "/var/log/nginx/access.log"),
    ("denied", "Error: EACCES: permission denied, open '/srv/app/data.json'", "/srv/app/data.json"),
    ("denied", "could not open file: Permission denied", ""),
    ("library", "./app: symbol lookup error: ./app: undefined symbol: foo_init", "foo_init"),
    ("library", "/lib/libc.so.6: version `GLIBC_2.38' not found (required by /opt/app)", "GLIBC_2.38"),
    ("module", "Error: Cannot find module 'express'", "express"),
    ("module", "java.lang.ClassNotFoundException: org.example.Main", "org.example.Main"),
    ("refused", "dial tcp 127.0.0.1:5432: connect: connection refused", ""),
    ("refused", "getaddrinfo: Temporary failure in name resolution", ""),
    (
        "config-path",
        'nginx: [emerg] unknown directive "lisen" in /etc/nginx/nginx.conf:12',
        "/etc/nginx/nginx.conf",
    ),
    ("config-path", "syntax error at end of input, file /etc/app/app.conf line 3", "/etc/app/app.conf"),
    ("config-path", "parse error near /etc/app/rules", "/etc/app/rules"),
    ("config-parser", "yaml.scanner.ScannerError: mapping values are not allowed here", ""),
    ("config-parser", 'FATAL: invalid value for parameter "shared_buffers"', ""),
    ("config-parser", "failed to load config: unexpected token", ""),
    ("file-absent", "open /etc/app/cert.pem: no such file or directory", "/etc/app/cert.pem"),
    ("file-absent", "ENOENT: no such file or directory, open '/srv/app/x.json'", "/srv/app/x.json"),
    ("clock", "x509: certificate is not yet valid: current time", ""),
    ("clock", "krb5: Clock skew too great", ""),
]


@pytest.mark.parametrize(("name", "text", "subject"), SAID)
def test_programs_are_understood(name: str, text: str, subject: str) -> None:
    entry = evidence.entry(1, {"MESSAGE": text, "_PID": "7", "_SYSTEMD_UNIT": "web.service"}, KEY)
    found = signatures.scan(Evidence("web.service", entries=[entry]))
    assert (name, subject) in [(one.signature.name, one.subject) for one in found]


def test_a_message_that_a_pattern_finds_has_one_of_its_needles() -> None:
    texts = {one["MESSAGE"] for release in captured.RELEASES for text in captured.incidents(release).values()
             for one in text["entries"]}  # fmt: skip
    for one in signatures.SIGNATURES:
        for text in (*sorted(texts), *(text for _, text, _ in SAID)):
            if one.pattern.search(text):
                assert any(needle in text.lower() for needle in one.needles), (one.name, text)


def test_the_page_has_the_table_of_signatures() -> None:
    page = (Path(__file__).parents[3] / "docs" / "triage.md").read_text()
    for one in signatures.SIGNATURES:
        near = f", {one.weight + signatures.NEAR:g} beside a path" if one.near else ""
        assert f"| `{one.name}` | {', '.join(one.origins)} | `{one.fault_class}` | {one.weight:g}{near} |" in page
