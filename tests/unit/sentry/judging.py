# SPDX-License-Identifier: Apache-2.0
"""What signatures and policy make of evidence, and changes as contextd tells of them."""

from __future__ import annotations

import captured
import pytest

from syntrop.sentry import causes, evidence, remedy, signatures, verdict
from syntrop.sentry.evidence import Change, Counter, Evidence, Exit, Facts, Package

KEY = captured.KEY
both = pytest.mark.parametrize("release", captured.RELEASES)

# Texts of systemd alone: the class, whatever the release.
CLASSES = {
    "assert_failed": signatures.EXECUTION_CONTEXT,
    "bad_syscall": signatures.SYSTEM_CALL,
    "bindsto_gone": signatures.DEPENDENCY,
    "condition_failed": signatures.NO_FAILURE,
    "config_nonsense_python": signatures.CONFIGURATION,
    "connection_refused": signatures.DEPENDENCY,
    "dependency_down": signatures.DEPENDENCY,
    "dependency_missing": signatures.NO_FAILURE,
    "exec_denied": signatures.PERMISSION,
    "exec_format": signatures.MISSING_PROGRAM,
    "exec_start_pre": signatures.CONFIGURATION,
    "execstart_typo": signatures.MISSING_PROGRAM,
    "fd_limit": signatures.DESCRIPTOR_LIMIT,
    "flapping": signatures.FLAPPING,
    "killed_9": signatures.STOPPED_BY_HAND,
    "manual_stop": signatures.STOPPED_BY_HAND,
    "missing_credential": signatures.EXECUTION_CONTEXT,
    "missing_envfile": signatures.MISSING_FILE,
    "missing_rwpath": signatures.MISSING_FILE,
    "missing_user": signatures.EXECUTION_CONTEXT,
    "missing_workdir": signatures.MISSING_FILE,
    "mount_ns": signatures.MISSING_FILE,
    "notify_protocol": signatures.PROTOCOL,
    "oneshot_fail": signatures.JOB_FAILED,
    "permission_denied": signatures.PERMISSION,
    "permission_state": signatures.PERMISSION,
    "pid_file": signatures.PROTOCOL,
    "plain_crash_abort": signatures.CRASH,
    "plain_crash_segv": signatures.CRASH,
    "plain_exit_1": signatures.CRASH,
    "port_privileged": signatures.PERMISSION,
    "port_taken": signatures.PORT_TAKEN,
    "port_taken_socket_unit": signatures.PORT_TAKEN,
    "python_module": signatures.MISSING_LIBRARY,
    "readonly_fs": signatures.READ_ONLY,
    "recovers": signatures.RECOVERED,
    "shared_library": signatures.MISSING_LIBRARY,
    "start_timeout": signatures.TIMEOUT,
    "state_dir_full": signatures.DISK_FULL,
    "stop_timeout": signatures.STOPPED_BY_HAND,
    "syntax_dropin_badsetting": signatures.UNIT_SYNTAX,
    "syntax_garbage": signatures.UNIT_SYNTAX,
    "syntax_section": signatures.UNIT_SYNTAX,
    "syntax_two_exec": signatures.UNIT_SYNTAX,
    "template_instance": signatures.CRASH,
    "watchdog": signatures.WATCHDOG,
}


def judged(found: Evidence) -> tuple[causes.Cause, remedy.Action, str]:
    """The cause that signatures give, its action, and what is done with it."""
    ruled = verdict.combine(causes.candidates(found, signatures.scan(found)), None)
    action = remedy.choose(ruled.cause, found)
    return ruled.cause, action, remedy.disposition(ruled, action, found)


def drop_in(
    found: Evidence, text: str, *, name: str = "50-tuning.conf", old: str = "", before_s: float = 60
) -> Change:
    """A drop-in of the unit that changed so long before the failure, as contextd tells of it."""
    path = f"/etc/systemd/system/{found.unit}.d/{name}"
    lines = [f"-{line}" for line in old.splitlines()] + [f"+{line}" for line in text.splitlines()]
    return Change(
        "d1",
        path=path,
        time_us=(found.failed_us or 0) - int(before_s * 1e6),
        diff="\n".join([f"--- a{path}", f"+++ b{path}", "@@ -1,2 +1,2 @@", *lines]),
        summary=f"{path} changed",
        reason=f"drop-in of {found.unit}, 1 min before it failed",
        event_id="e1",
    )


def file(found: Evidence, path: str, diff: str, *, role: str = "configuration", summary: str = "") -> Change:
    return Change(
        "d1",
        path=path,
        time_us=(found.failed_us or 0) - 30_000_000,
        diff=diff,
        summary=summary or f"{path} changed",
        reason=f"{role} of {found.unit}, 30 s before it failed",
        event_id="e1",
    )


def package(found: Evidence, name: str, reason: str) -> Package:
    return Package(
        "k1", name=name, action="upgrade", version="2.1-1", old_version="2.0-3", reason=reason,
        time_us=(found.failed_us or 0) - 600_000_000,
    )  # fmt: skip


def oom(memory: str = "", *, kernel: bool = True, name: str = "web.service") -> Evidence:
    """A unit that was killed at its limit, as Linux and systemd word it."""
    texts = [
        {
            "_PID": "1",
            "UNIT": name,
            "MESSAGE": f"{name}: A process of this unit has been killed by the OOM killer.",
        },
        {
            "_PID": "1",
            "UNIT": name,
            "MESSAGE": f"{name}: Failed with result 'oom-kill'.",
            "UNIT_RESULT": "oom-kill",
        },
    ]
    if kernel:
        texts = [
            {
                "_TRANSPORT": "kernel",
                "MESSAGE": "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
                f"oom_memcg=/system.slice/{name},task_memcg=/system.slice/{name},task=web,pid=700,uid=33",
            },
            {
                "_TRANSPORT": "kernel",
                "MESSAGE": "Memory cgroup out of memory: Killed process 700 (web) total-vm:2676kB, anon-rss:84kB,"
                " file-rss:1468kB, shmem-rss:4kB, UID:33 pgtables:40kB oom_score_adj:0",
            },
            *texts,
        ]
    found = Evidence(
        name,
        failed_us=10**15,
        exit=Exit("oom-kill", evidence.KILLED, 9),
        facts=Facts(active="failed"),
        entries=[evidence.entry(n, {"__CURSOR": f"c{n}", **one}, KEY) for n, one in enumerate(texts, 1)],
        counters=[Counter("g1", "memory.events oom_kill", 1)],
    )
    if not memory:
        return found
    return Evidence(
        name, failed_us=found.failed_us, exit=found.exit, facts=found.facts, entries=found.entries,
        counters=found.counters, changes=[drop_in(found, memory)],
    )  # fmt: skip
