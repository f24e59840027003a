# SPDX-License-Identifier: Apache-2.0
"""Machines for the tests of the installed suite, and the list of what could not run.

Everything here boots a real systemd in namespaces, which takes root. Without it the tests are not collected as
skipped: each is listed by name under "not run" at the end of the session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from calm import CALM

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import suite  # noqa: E402
from machine import Machine  # noqa: E402
from roots import BOOKWORM, TRIXIE, Roots  # noqa: E402

NOT_RUN = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    if os.geteuid() == 0:
        # bookworm last: its root is built while trixie's tests run.
        last = [item for item in mine if "bookworm" in getattr(item, "fixturenames", ())]
        items[:] = [item for item in items if item not in last] + last
        return
    config.stash[NOT_RUN] = [item.nodeid for item in mine]
    config.hook.pytest_deselected(items=mine)
    items[:] = [item for item in items if item not in mine]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    names = config.stash.get(NOT_RUN, [])
    if names:
        terminalreporter.section("not run: these need root (namespaces, mounts)")
        for name in names:
            terminalreporter.line(name)


@pytest.fixture(scope="session")
def roots() -> dict[str, Roots]:
    """Both releases, building side by side from the first moment that either is needed."""
    both = {release.name: Roots(release) for release in (TRIXIE, BOOKWORM)}
    for one in both.values():
        one.start()
    return both


@pytest.fixture(scope="session")
def model() -> Path:
    """The starter model's file, fetched as `syntropctl` fetches it."""
    from syntrop.ctl import starter

    return Path(starter.fetch())


def booted(roots: Roots, model: Path) -> Iterator[Machine]:
    binds = [(str(model), suite.MODEL_FILE, True), (str(HERE.parents[1]), "/src", True)]
    with Machine(roots.layers(), binds=binds, name=f"syntrop-{roots.release.name}") as machine:
        machine.write("/etc/syntrop/inferenced.toml.d/10-calm.toml", CALM)
        yield machine


@pytest.fixture(scope="module")
def machine(roots: dict[str, Roots], model: Path) -> Iterator[Machine]:
    """A freshly booted trixie (systemd 257, Python 3.13) with the suite installed, one for each module."""
    yield from booted(roots["trixie"], model)


@pytest.fixture(scope="module")
def bookworm(roots: dict[str, Roots], model: Path) -> Iterator[Machine]:
    """The same of bookworm (systemd 252, Python 3.11)."""
    yield from booted(roots["bookworm"], model)
