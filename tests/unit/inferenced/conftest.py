# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Unpacks a machine of `tests/data/machines` and makes it this one; its folder, with `sys` and `proc`."""
    source = Path(__file__).parents[2] / "machines.py"
    spec = importlib.util.spec_from_file_location("syntrop_tests_machines", source)
    assert spec is not None and spec.loader is not None
    machines = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(machines)

    def unpack(name: str) -> Path:
        target = tmp_path / f"{name}.{len(list(tmp_path.iterdir()))}"
        for variable, value in machines.unpack(name, target).items():
            monkeypatch.setenv(variable, value)
        return target

    return unpack
