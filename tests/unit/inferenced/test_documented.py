# SPDX-License-Identifier: Apache-2.0
"""docs/inferenced.md says what the code does: states, costs, policies, refusals."""

from __future__ import annotations

import re
from pathlib import Path

from syntrop.common.varlink import idl
from syntrop.inferenced import placement
from syntrop.inferenced.lease import ENDS, TRANSITIONS, State
from syntrop.inferenced.plane import Link, Plane, Topology

PAGE = (Path(__file__).parents[3] / "docs" / "inferenced.md").read_text(encoding="utf-8")
GIB = 1 << 30


def rows(first: str) -> list[list[str]]:
    """The cells of the table whose head begins with `first`."""
    lines = PAGE[PAGE.index(f"| {first} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_states_and_transitions() -> None:
    told = {row[0]: {one for one in re.split(r",\s*", row[3]) if one} for row in rows("state")}
    assert told == {state.value: {after.value for after in TRANSITIONS[state]} for state in State}
    taken = {row[0]: row[2] for row in rows("state")}
    assert {name for name, what in taken.items() if what == "nothing"} == {
        State.PREEMPTED.value,
        *(state.value for state in ENDS),
    }


def test_fitness() -> None:
    kinds = {
        "CPU with AMX": Plane("cpu0", "", "cpu", GIB, features=("amx-int8",)),
        "CPU": Plane("cpu0", "", "cpu", GIB),
        "NPU": Plane("npu0", "", "npu", GIB),
        "GPU": Plane("gpu0", "", "gpu", GIB),
    }
    for row in rows("fitness"):
        role = row[0].strip("`") if "`" in row[0] else "target"
        assert [int(cell) for cell in row[1:]] == [placement.fitness(role, plane) for plane in kinds.values()]


def test_the_example_is_placed_as_it_says() -> None:
    room = {"cpu0": 16 * GIB, "gpu0": 16 * GIB}
    parts = [placement.Part("draft", GIB), placement.Part("target", 8 * GIB)]
    for features, where in ((("amx-int8",), ("cpu0", "gpu0")), ((), ("gpu0", "gpu0"))):
        planes = [Plane("cpu0", "", "cpu", 16 * GIB, features=features), Plane("gpu0", "", "gpu", 16 * GIB)]
        link = Link("cpu0", "gpu0", "pcie", 31_500_000_000, 1000, 13)
        assert placement.place(parts, Topology(planes, [link]), room) == where


def test_policies_and_bounds() -> None:
    assert [row[0].strip("`") for row in rows("policy")] == list(placement.POLICIES)
    assert f"up to {placement.PARTS_MAX} parts" in PAGE


def test_every_refusal_is_explained() -> None:
    told = {name for row in rows("error") for name in re.findall(r"`(\w+)`", row[0])}
    assert told == set(idl.load("io.syntrop.Inference1").errors)
