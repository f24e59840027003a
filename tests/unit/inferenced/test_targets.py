# SPDX-License-Identifier: Apache-2.0
"""What is frozen to stop a process, and what never may be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from syntrop.inferenced import targets

RULES = Path(__file__).parents[3] / "units/polkit/rules.d/50-syntrop.rules"
SERVICES = Path(__file__).parents[3] / "units"

NEVER = [
    "init.scope",
    "-.slice",
    "user.slice",
    "user@1000.service",
    "user-runtime-dir@1000.service",
    "session-3.scope",
    "systemd-journald.service",
    "systemd-logind.service",
    "systemd-udevd.service",
    "dbus.service",
    "dbus-broker.service",
    "polkit.service",
    "ssh.service",
    "sshd.service",
    "sshd@0-127.0.0.1:22.service",
    "getty@tty1.service",
    "emergency.service",
    "sound.target",
    "docker.socket",
    "",
]


@pytest.mark.parametrize("target", NEVER)
def test_what_keeps_a_host_going_is_never_frozen(target: str) -> None:
    assert targets.objection(target)


@pytest.mark.parametrize("path", sorted(SERVICES.glob("*.service")), ids=lambda path: path.name)
def test_nor_is_the_suite(path: Path) -> None:
    assert targets.objection(path.name.replace("@.", "@7."))


@pytest.mark.parametrize(
    "target",
    [
        "nginx.service",
        "run-u7.scope",
        "jobs@3.service",
        "myssh.service",
        "my-routerd.service",
        "/system.slice/a/b",
    ],
)
def test_others_may_be(target: str) -> None:
    assert targets.objection(target) is None


def test_polkit_and_we_agree() -> None:
    """Where we would not object, the rules do not refuse; and what they refuse, we do not ask for."""
    text = RULES.read_text()
    expressions = [re.search(rf"{name} = /(.*)/;", text) for name in ("SYNTROP_PROTECTED", "SYNTROP_OURS")]
    refused = [re.compile(found[1].replace(r"\/", "/")) for found in expressions if found]
    assert len(refused) == 2
    for unit in (*NEVER, "nginx.service", "run-u7.scope", "jobs@3.service", "user-extra.service"):
        if unit.endswith((".service", ".scope")) and any(one.match(unit) for one in refused):
            assert targets.objection(unit), unit


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/system.slice/nginx.service", "nginx.service"),
        ("/system.slice/nginx.service/worker", "nginx.service"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/x.service", "user@1000.service"),
        ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
        ("/", ""),
        ("/docker/0123", ""),
        ("/jobs.slice/farm.service/job1", "/jobs.slice/farm.service/job1"),
        ("/jobs.slice/farm.service", "farm.service"),
        ("/jobs.slice/farm.service2/job1", ""),
    ],
)
def test_the_target_of_a_group(path: str, target: str) -> None:
    assert targets.of_group(path, ("/jobs.slice/farm.service",)) == target
