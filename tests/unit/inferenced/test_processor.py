# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.inferenced import processor
from syntrop.inferenced.processor import Node

Machine = Callable[[str], Path]


def test_features_are_those_of_the_first_processor() -> None:
    text = "flags\t\t: sse avx2 avx512f amx_tile amx_int8 avx_vnni avx512_vnni avx512_bf16\n\nflags : f16c\n"
    assert processor.features(text) == ("avx2", "vnni", "avx512f", "bf16", "amx-int8")
    assert processor.features("Features\t: asimd i8mm bf16 sve\n") == ("neon", "i8mm", "bf16", "sve")
    assert processor.features("vmx flags\t: avx2\n") == processor.features("") == ()


def test_names() -> None:
    assert processor.model("processor : 0\nmodel name\t: A  B\tC\n\nmodel name : D\n") == "A B C"
    assert processor.model("Features : asimd\n") == ""
    assert len(processor.model("model name : " + "x" * 1000)) == 128


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0\n", [0]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("", []),
        ("\n", []),
        ("3-1", []),
        ("0-99999", []),
        ("-1", []),
        ("a", []),
        ("0,x", []),
        ("٣", []),
        (",".join(["0-4000"] * 3), []),
    ],
)
def test_lists(text: str, expected: list[int]) -> None:
    assert processor.numbers(text) == expected


def test_meminfo() -> None:
    text = "MemTotal:  10 kB\nActive(file):  2 kB\nHugePages_Total:  3\nX: 9999999999999999999 kB\n"
    text += "Node 0 MemFree: 4 kB\n"
    assert processor.meminfo(text) == {
        "MemTotal": 10240,
        "Active(file)": 2048,
        "MemFree": 4096,
    }
    assert processor.meminfo("MemTotal: -1 kB\nMemTotal: x kB\n: 5 kB\n") == {}


def test_distances() -> None:
    assert processor.slit("10 21 31\n", [0, 1, 3]) == {0: 10, 1: 21, 3: 31}
    assert processor.slit("0 21", [0, 1]) == {0: 10, 1: 21}
    for text in ("", "10", "10 x", "10 -21", "10 21 31 41", "10 ٢"):
        assert processor.slit(text, [0, 1]) == {}
    nodes = [Node(0, 1, 1, {0: 10, 1: 21}), Node(1, 1, 1, {0: 21, 1: 10})]
    assert processor.distance(nodes, 0, 1) == 21
    assert processor.distance(nodes, 1, 1) == 10
    assert processor.distance(nodes, 0, None) == processor.distance(nodes, None, None) == 21
    assert processor.distance(nodes, 0, 7) == 21
    assert processor.distance(nodes[:1], 0, None) == 10
    assert processor.distance([Node(0, 1, 1), Node(1, 1, 1)], 0, 1) == 20


@given(
    st.integers(0, 1 << 45),
    st.dictionaries(
        st.integers(0, 7),
        st.fixed_dictionaries(
            {"MemTotal": st.integers(0, 1 << 43), "MemFree": st.integers(0, 1 << 43)},
            optional={"Inactive(file)": st.integers(0, 1 << 40)},
        ),
        max_size=8,
    ),
)
def test_shares_are_of_the_whole(available: int, nodes: dict[int, dict[str, int]]) -> None:
    found = processor.shares(available, nodes)
    assert set(found) == set(nodes)
    known = [one for one in found.values() if one is not None]
    assert sum(known) <= available
    if len(nodes) > 1:
        assert all(one <= nodes[node]["MemTotal"] for node, one in found.items() if one is not None)
    assert processor.shares(None, nodes) == dict.fromkeys(nodes)


def test_memory_by_node(machine: Machine) -> None:
    machine("two-nodes")
    found = processor.memory()
    assert (found.total, found.available) == (335544320 << 10, 293601280 << 10)
    # 112 of what 280 could be had, 112 of 280 and 60 of 280 GiB: the machine's figure by their weights.
    weights = {0: 113246208, 1: 117440512, 2: 62914560}
    assert found.by_node == {
        node: found.available * weight // sum(weights.values())
        for node, weight in weights.items()
        if found.available
    }
    assert [(one.number, one.cores, one.total) for one in processor.nodes()] == [
        (0, 2, 128 << 30),
        (1, 4, 128 << 30),
    ]


def test_one_node_has_what_the_machine_has(machine: Machine) -> None:
    root = machine("amd-card")
    node = root / "sys/devices/system/node/node0/meminfo"
    node.write_text("Node 0 MemTotal: 1 kB\nNode 0 MemFree: 1 kB\n")  # a balloon is in one figure only
    assert [one.total for one in processor.nodes()] == [32777412 << 10]
    assert processor.memory().by_node == {0: 27215880 << 10}


def test_without_nodes(machine: Machine) -> None:
    machine("arm-board")
    assert processor.nodes() == [Node(0, 4, 8128512 << 10)]
    assert processor.memory().by_node == {0: 7340032 << 10}


def test_nothing_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTROP_SYS_ROOT", str(tmp_path / "sys"))
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path / "proc"))
    assert processor.nodes() == [Node(0, os.cpu_count() or 1, None)]
    assert processor.memory() == processor.Memory(None, None, {0: None})
    assert processor.cpuinfo() == ""


def test_this_machine() -> None:
    nodes, memory = processor.nodes(), processor.memory()
    assert sum(one.cores for one in nodes) >= 1
    assert memory.total is not None and memory.available is not None and 0 < memory.available <= memory.total
