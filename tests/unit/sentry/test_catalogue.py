# SPDX-License-Identifier: Apache-2.0
"""Incidents as folders: what is taken for one, and what is refused with a reason."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SYSTEM = Path(__file__).parents[2] / "system"
WHOLE = 'about = "x"\nunit = "a.service"\ncause = "crash"\naction = "restart"\ndone = "act"\n'


@pytest.fixture(scope="module")
def catalogue() -> ModuleType:
    sys.path.insert(0, str(SYSTEM))
    try:
        spec = importlib.util.spec_from_file_location("incidents_catalogue", SYSTEM / "catalogue.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(SYSTEM))


def folder(at: Path, text: str, *, script: bool = True) -> Path:
    at.mkdir(parents=True, exist_ok=True)
    (at / "incident.toml").write_text(text)
    if script:
        (at / "break.sh").write_text("true\n")
    return at


def test_ours_are_whole_and_their_own(catalogue: ModuleType) -> None:
    found = catalogue.cases() + catalogue.cases(tier=catalogue.FULL)
    assert len(found) >= 28
    units = [one.unit for one in found]
    assert len(set(units)) == len(units)
    assert all(one.unit.startswith("inc-") for one in found)
    # What may change is known to the byte: nothing but the unit's own is named.
    own = ("/etc/", "/var/cache/inc-", "/run/systemd/system.control/inc-")
    assert all(path.startswith(own) for one in found for path in one.changed)
    assert sum(one.model for one in found) >= 2


def test_one_folder_or_a_folder_of_them(catalogue: ModuleType, tmp_path: Path) -> None:
    one = folder(tmp_path / "b", WHOLE + 'changed = ["/etc/x"]\napprove = true\n')
    folder(tmp_path / "a", WHOLE.replace('"crash"', '["crash", "unknown"]'))
    assert [case.name for case in catalogue.cases(tmp_path)] == ["a", "b"]
    [case] = catalogue.cases(one)
    assert (case.cause, case.changed, case.approve, case.tier) == (("crash",), ("/etc/x",), True, "fast")
    assert catalogue.cases(one, tier="full") == []
    assert catalogue.cases(tmp_path)[0].cause == ("crash", "unknown")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("about = ", "Invalid value"),
        (WHOLE + "color = 1\n", "incident.toml has no color"),
        (WHOLE + 'approve = "yes"\n', "approve is no bool"),
        (WHOLE + 'changed = "/etc/x"\n', "changed is no list"),
        (WHOLE.replace('unit = "a.service"\n', ""), "'unit'"),
        (WHOLE.replace('"act"', '"hope"'), "done is act, stage or report"),
        (WHOLE + 'tier = "slow"\n', "tier is fast or full"),
    ],
)
def test_what_is_none_is_refused_with_a_reason(catalogue: ModuleType, tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(catalogue.FolderError, match=why):
        catalogue.load(folder(tmp_path / "one", text))


def test_an_incident_breaks_something(catalogue: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(catalogue.FolderError, match=r"there is no break\.sh"):
        catalogue.load(folder(tmp_path / "one", WHOLE, script=False))
    with pytest.raises(catalogue.FolderError, match=r"no incident\.toml"):
        catalogue.cases(tmp_path / "nothing")


def test_every_byte_is_compared(catalogue: ModuleType) -> None:
    before = {"/etc/a": ("0o100644", "0:0", "1", "", "x"), "/etc/b": ("0o120777", "0:0", "a")}
    after = {"/etc/a": ("0o100644", "0:0", "2", "", "x"), "/etc/c": ("0o40755", "0:0")}
    assert catalogue.differences(before, after) == ["/etc/a", "/etc/b", "/etc/c"]
    assert catalogue.differences(before, before) == []
