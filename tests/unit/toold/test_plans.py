# SPDX-License-Identifier: Apache-2.0
"""Which file a change is about."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from syntrop.toold import changes
from syntrop.toold.changes import ChangeError, Site


def test_of_drop_ins_of_one_name_the_newest_is_meant_or_the_one_that_is_named(tmp_path: Path) -> None:
    roots = (str(tmp_path / "etc"), str(tmp_path / "run"))
    site = Site(str(tmp_path / "state"), drop_ins=roots)
    unit, times = "web@a.service", iter(range(1, 9))
    paths = [Path(root, f"{owner}.d", "x.conf") for root in roots for owner in (unit, "web@.service")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("[Service]\n")
        os.utime(path, (moment := next(times), moment))

    def planned(name: str, path: str) -> str | None:
        return changes._plan_revert(site, (unit,), unit, name, path, 1 << 20).target_path

    assert planned("x.conf", "") == planned("", "") == str(paths[2])  # the instance's own, in the second folder
    for path in paths:
        assert planned("x.conf", str(path)) == str(path)
    for name, path in (
        ("y.conf", ""),
        ("y.conf", str(paths[0])),
        ("x.conf", f"{tmp_path}/etc/other.service.d/x.conf"),
    ):
        with pytest.raises(ChangeError):
            planned(name, path)
