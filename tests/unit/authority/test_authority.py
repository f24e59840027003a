# SPDX-License-Identifier: Apache-2.0
"""The authority table: complete, documented, and doing what it says."""

from __future__ import annotations

import grp
import os
import pwd
import re
import types
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import authority, loop, polkit
from syntrop.common.authority import ANYBODY, OPERATORS, RIGHTS, SUPERVISOR, Accounts, Quota, Right
from syntrop.common.varlink import idl
from syntrop.common.varlink.errors import PermissionDenied

REPOSITORY = Path(__file__).parents[3]
GID = 54321


class FakePeer:
    def __init__(self, uid: int, groups: frozenset[int] = frozenset()) -> None:
        self.uid = uid
        self.groups = groups
        self.known = uid >= 0


def call(uid: int, groups: frozenset[int] = frozenset(), method: str = "") -> Any:
    return types.SimpleNamespace(peer=FakePeer(uid, groups), method=method)


@pytest.fixture(autouse=True)
def accounts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with the suite's accounts, and a daemon that runs as one of them; polkit lends nothing."""

    async def refuse(*_arguments: object, **_keywords: object) -> bool:
        return False

    numbers = {name: 50000 + index for index, name in enumerate(authority.USERS)}

    def getpwnam(name: str) -> Any:
        return types.SimpleNamespace(pw_uid=numbers[name])

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    monkeypatch.setattr(grp, "getgrnam", lambda name: types.SimpleNamespace(gr_gid={"syntrop": GID}[name]))
    monkeypatch.setattr(os, "geteuid", lambda: 49999)
    monkeypatch.setattr(polkit, "check", refuse)
    monkeypatch.setattr(authority, "_accounts", None)
    yield


def allowed(who: Any, right: Right | None, **keywords: Any) -> bool:
    try:
        loop.run(authority.authorize(who, right, **keywords))
    except PermissionDenied:
        return False
    return True


def test_every_method_of_every_interface_has_its_row() -> None:
    folder = REPOSITORY / "src/syntrop/interfaces"
    names = {path.name.removesuffix(".varlink") for path in folder.glob("*.varlink")}
    assert set(authority.METHODS) == names
    for name in names:
        assert list(authority.METHODS[name]) == list(idl.load(name).methods), name


def test_the_documents_table_is_this_table() -> None:
    assert (REPOSITORY / "docs/authority.md").read_text().endswith("\n\n" + authority.table())


def test_accounts_are_those_that_are_shipped() -> None:
    shipped = (REPOSITORY / "units/sysusers.d/syntrop.conf").read_text()
    assert set(re.findall(r"^u (\S+)", shipped, re.MULTILINE)) == set(authority.USERS)
    assert re.findall(r"^g (\S+)", shipped, re.MULTILINE) == [authority.GROUP]


def test_polkit_knows_every_action_and_only_these() -> None:
    policy = ElementTree.parse(REPOSITORY / "units/polkit/actions/io.syntrop.policy")
    shipped = {action.get("id") for action in policy.iter("action")}
    assert shipped == {right.action for right in RIGHTS if right.action}


def test_only_what_operators_hold_can_be_lent() -> None:
    for right in RIGHTS:
        assert (right.action is not None) == (right.holders == OPERATORS)


@pytest.mark.parametrize("right", [r for r in RIGHTS if r.holders == ANYBODY], ids=repr)
def test_anybody(right: Right) -> None:
    assert allowed(call(1000), right)
    assert allowed(call(-1), right)


@pytest.mark.parametrize("right", [r for r in RIGHTS if r.holders == OPERATORS], ids=repr)
def test_operators(right: Right) -> None:
    assert allowed(call(0), right)
    assert allowed(call(49999), right)
    assert allowed(call(50000 + authority.USERS.index("sentry")), right)
    assert allowed(call(1000, frozenset({7, GID})), right)
    assert not allowed(call(1000, frozenset({7})), right)
    # A peer that the kernel does not vouch for is nobody, whatever it would like to be.
    assert not allowed(call(-1, frozenset({GID})), right)


@pytest.mark.parametrize("right", [r for r in RIGHTS if r.holders == SUPERVISOR], ids=repr)
def test_triage_is_had_on_its_socket_alone(right: Right) -> None:
    for who in (call(0), call(49999), call(1000, frozenset({GID}))):
        assert allowed(who, right, endpoint="sentry.sock")
        for endpoint in ("", "io.syntrop.Inference1", "gateway.sock", "fd.sock", "tcp", "router.sock"):
            assert not allowed(who, right, endpoint=endpoint)
    for stranger in (call(1000), call(1000, frozenset({7})), call(-1, frozenset({GID}))):
        assert not allowed(stranger, right, endpoint="sentry.sock")


def test_no_endpoint_but_triages_passes_interactive() -> None:
    assert authority.ceiling("sentry.sock") == "EmergencyTriage"
    for endpoint in ("tcp", "router.sock", "gateway.sock", "io.syntrop.Inference1", "fd.sock"):
        assert authority.ceiling(endpoint) == "Interactive"


def test_where_all_come_by_one_socket_the_supervisor_is_known_by_its_account_alone() -> None:
    sentry = 50000 + authority.USERS.index("sentry")
    assert loop.run(authority.supervises(call(sentry)))
    others = [*range(49999, 50000 + len(authority.USERS)), 0, 1000, -1]
    others.remove(sentry)
    assert not any(loop.run(authority.supervises(call(uid, frozenset({GID})))) for uid in others)


def test_without_the_account_nobody_is_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(name: str) -> Any:
        raise KeyError(name)

    monkeypatch.setattr(pwd, "getpwnam", nobody)
    assert not any(loop.run(authority.supervises(call(uid))) for uid in (0, 49999, 1000, -1))


def test_the_method_names_the_right() -> None:
    assert allowed(call(1000, method="io.syntrop.Model1.List"), None)
    assert not allowed(call(1000, method="io.syntrop.Model1.Pin"), None)
    with pytest.raises(KeyError):
        authority.required("io.syntrop.Model1.Nonsense")


def test_polkit_may_lend(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def lend(who: FakePeer, action: str, details: dict[str, str], *, interactive: bool) -> bool:
        asked.append((who.uid, action, details, interactive))
        return True

    monkeypatch.setattr(polkit, "check", lend)
    assert allowed(call(1000), authority.PIN, interactive=True, details={"model": "a"})
    assert allowed(call(1000), authority.PIN)
    assert asked == [
        (1000, "io.syntrop.model.pin", {"model": "a"}, True),
        (1000, "io.syntrop.model.pin", {}, False),
    ]
    # Never asked about those who hold it anyway, nor about what is not to be lent.
    assert allowed(call(0), authority.PIN)
    assert not allowed(call(1000), authority.TRIAGE)
    assert not allowed(call(-1), authority.PIN)
    assert len(asked) == 2


def test_a_machine_without_the_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(pwd, "getpwnam", none)
    monkeypatch.setattr(grp, "getgrnam", none)
    assert Accounts.look_up().gid is None
    assert allowed(call(0), authority.PIN)
    assert not allowed(call(50000, frozenset({GID})), authority.PIN)


def test_quota() -> None:
    quota = Quota(3)
    assert quota.take(1000, 2)
    assert not quota.take(1000, 2)
    assert quota.held(1000) == 2
    assert quota.take(1001, 3)
    assert quota.take(1000)
    quota.give(1000, 3)
    assert quota.held(1000) == 0
    with pytest.raises(ValueError, match="1000"):
        quota.give(1000)
    assert quota.take(0, 100)
    assert quota.take(49999, 100)
