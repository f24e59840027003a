# SPDX-License-Identifier: Apache-2.0
"""What may be acted on, and how often."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.rates import Rate
from syntrop.toold.policy import Policy, Refused

NEVER = [
    "init.scope",
    "-.slice",
    "-.mount",
    "system.slice",
    "systemd-journald.service",
    "systemd-journald.socket",
    "systemd-logind.service",
    "systemd-udevd.service",
    "systemd-sentry.service",
    "dbus.service",
    "dbus.socket",
    "dbus-broker.service",
    "dbus-org.freedesktop.login1.service",
    "polkit.service",
    "ssh.service",
    "ssh.socket",
    "sshd.service",
    "sshd@1-2.service",
    "ssh@1.service",
    "user@0.service",
    "getty@tty1.service",
    "autovt@tty2.service",
    "systemd-journald@other.service",
    "debug-shell.service",
    "multi-user.target",
    "toold.service",
    "toold.socket",
    "toold-diag.socket",
    "routerd.service",
    "inferenced.service",
    "inferenced-enclave.socket",
    "modeld.service",
    "contextd.service",
    "runtimed.service",
    "syntrop-ports.service",
    "syntrop-sockets.target",
]


@pytest.mark.parametrize("unit", NEVER)
def test_no_setting_opens_the_core(unit: str) -> None:
    with pytest.raises(Refused, match="never"):
        Policy(units_allow=["*", unit]).check_unit(unit)


def test_what_stops_with_a_unit() -> None:
    policy = Policy()
    for other in ("nginx.service", "multi-user.target", "system.slice"):
        policy.check_company("base.service", other)
    for other in ("sshd.service", "dbus.socket", "systemd-logind.service", "toold.service"):
        with pytest.raises(Refused, match=f"takes {other} along"):
            policy.check_company("base.service", other)


def test_globs() -> None:
    policy = Policy(units_allow=["web-*.service", "nginx.service"], units_deny=["web-prod*"])
    policy.check_unit("nginx.service")
    policy.check_unit("web-1.service")
    for unit in ("web-prod.service", "other.service"):
        with pytest.raises(Refused):
            policy.check_unit(unit)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/etc/shadow-",
        "/etc/passwd",
        "/etc/sudoers.d/x",
        "/etc/ssh/sshd_config",
        "/etc/pam.d/login",
        "/etc/ld.so.preload",
        "/etc/syntrop/toold.toml",
        "/etc/polkit-1/rules.d/x.rules",
        "/etc/systemd/system/x.service",
        "/etc/cron.d/x",
        "/usr/bin/x",
        "/root/.ssh/authorized_keys",
    ],
)
def test_files_that_are_never_restored(path: str) -> None:
    with pytest.raises(Refused):
        Policy().check_file(path)


def test_files_that_are() -> None:
    Policy().check_file("/etc/nginx/nginx.conf")
    with pytest.raises(Refused):
        Policy(files_deny=["/etc/nginx/*"]).check_file("/etc/nginx/nginx.conf")


def test_polkit_has_the_same_core() -> None:
    """The rule that polkit itself goes by holds the same units, should toold be deceived."""
    rules = (Path(__file__).parents[3] / "units/polkit/rules.d/50-syntrop.rules").read_text()
    patterns = [re.compile(one) for one in re.findall(r"^var SYNTROP_\w+ = /(.*)/;$", rules, re.M)]
    assert len(patterns) == 3
    # Targets and mounts are of no interest to the rule: no tool of ours could do anything to them.
    for unit in NEVER:
        if unit.endswith((".target", ".mount")) and not unit.startswith("syntrop"):
            continue
        assert any(pattern.match(unit.replace("\\", "")) for pattern in patterns), unit


def test_a_rate_lets_so_many_through() -> None:
    rate = Rate(3, 60)
    for second in range(3):
        assert rate.wait("a", second) == 0
        rate.count("a", second)
    assert rate.wait("a", 3) == 57
    assert rate.wait("b", 3) == 0
    assert rate.wait("a", 60) == 0


def test_a_limit_of_nothing() -> None:
    assert Rate(0).wait("a", 5.0) > 0


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 20)), max_size=60), st.integers(1, 5))
def test_no_window_ever_holds_more(events: list[tuple[int, float]], limit: int) -> None:
    rate = Rate(limit, 10.0)
    now, done = 0.0, []
    for key, pause in events:
        now += pause
        if rate.wait(key, now) <= 0:
            rate.count(key, now)
            done.append((key, now))
    for key, at in done:
        within = [one for one in done if one[0] == key and at - 10.0 < one[1] <= at]
        assert len(within) <= limit
