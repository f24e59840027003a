# SPDX-License-Identifier: Apache-2.0
"""What the shared library takes from the host, under a real manager: journal, settings, groups, pressure."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from arbiter import wait_for
from machine import Machine
from suite import DAEMONS

UNKNOWN_SETTING = "0d2e4b7a95c64a3f8a1c7be04d9f6172"
INFO = ["varlinkctl", "info", "/run/syntrop/io.syntrop.Context1"]
DROP_IN = "/etc/syntrop/contextd.toml.d/50-test.toml"
PYTHON = "/usr/lib/syntrop/bin/python"


def entries(machine: Machine, *matches: str) -> list[dict[str, str]]:
    machine.run(["journalctl", "--sync"])
    told = machine.run(["journalctl", "-b", "-o", "json", "--no-pager", *matches]).stdout
    return [json.loads(line) for line in told.splitlines()]


@pytest.fixture
def configured(machine: Machine) -> Iterator[Machine]:
    """contextd asleep, and afterwards without the test's settings."""
    machine.run("systemctl stop contextd.service; systemctl start syntrop-sockets.target")
    try:
        yield machine
    finally:
        machine.run(f"rm -f {DROP_IN}; systemctl stop contextd.service; systemctl reset-failed contextd.service")
        machine.run("systemctl start syntrop-sockets.target")


def test_messages_reach_the_journal_with_their_fields(configured: Machine) -> None:
    configured.write(DROP_IN, "[daemon]\nstop_timeout_sec = 3\nno_such_key = 1\n")
    configured.run(INFO)
    (entry,) = entries(configured, f"MESSAGE_ID={UNKNOWN_SETTING}")
    assert entry["MESSAGE"].startswith(f"{DROP_IN}:3: unknown key 'no_such_key'")
    assert entry["PRIORITY"] == "4"
    assert entry["SYSLOG_IDENTIFIER"] == "contextd"
    assert entry["_SYSTEMD_UNIT"] == "contextd.service"
    assert entry["_TRANSPORT"] == "journal"  # spoken natively, not parsed from the error output


def test_a_wrong_setting_is_a_clear_failure(configured: Machine) -> None:
    configured.write(DROP_IN, "[daemon]\nconnections_max = 'many'\n")
    configured.run(["systemctl", "start", "contextd.service"], check=False)
    configured.wait_property("contextd.service", "ExecMainStatus", "78")  # it is tried again meanwhile
    told = f"{DROP_IN}:2: connections_max must be an integer, not 'many'"
    # journald looks up whose words they are while the speaker lives, which is not for long.
    wait_for(lambda: told in configured.journal("contextd.service"), "its journal says what is wrong", configured)


def test_a_unit_s_group_is_found_and_read(machine: Machine) -> None:
    machine.run(INFO)
    script = """
from syntrop.common import cgroup, psi
group = cgroup.of_unit("contextd.service")
print(group.path)
assert group.unit() == "contextd.service"
assert [cgroup.of_pid(pid) for pid in group.pids()] == [group]
assert group.is_populated() and not group.is_frozen()
assert group.cpu_stat()["usage_usec"] > 0
assert group.pressure("memory").some.total >= 0
assert psi.read("cpu").some.total >= 0
"""
    path = machine.run_python(script, python=PYTHON).strip()
    assert path == machine.property("contextd.service", "ControlGroup")


def test_a_delegated_subtree_freezes_its_own(machine: Machine) -> None:
    script = """
import os
from syntrop.common import cgroup, loop

async def main():
    top = cgroup.delegated_subtree()
    worker = top.child("worker")
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    worker.add(pid)
    await worker.freeze()
    assert worker.is_frozen() and not top.is_frozen()
    await worker.thaw()
    await worker.kill()
    os.waitpid(pid, 0)
    worker.remove()
    print("ok", top.unit())

loop.run(main())
"""
    command = ["systemd-run", "--quiet", "--wait", "--pipe", "--unit=host-test", "-p", "Delegate=yes"]
    done = machine.run([*command, PYTHON, "-I", "-c", script])
    assert done.stdout == "ok host-test.service\n"


def test_man_pages_and_completions_are_where_others_look(machine: Machine) -> None:
    for path in (
        "/usr/share/man/man8/modeld.8",
        "/usr/share/man/man5/systemd-sentry.toml.5",
        "/usr/share/bash-completion/completions/routerd",
        "/usr/share/zsh/vendor-completions/_toold",
    ):
        assert machine.run(["readlink", "-e", path]).stdout.startswith("/usr/lib/syntrop/share/")


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_status_tells_who_sleeps_and_wakes_nobody(machine: Machine, user: str) -> None:
    machine.run("systemctl stop contextd.service toold.service; systemctl start contextd.service")
    seen = json.loads(machine.run(["syntropctl", "status", "--json"], user=user).stdout)
    states = {daemon["name"]: daemon["state"] for daemon in seen}
    assert set(states) == {daemon.name for daemon in DAEMONS}
    assert (states["contextd"], states["toold"]) == ("awake", "asleep")
    machine.run("systemctl stop contextd.service")
