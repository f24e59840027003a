# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from syntrop.common import drm

TREES = Path(__file__).parents[2] / "data" / "trees"


@contextmanager
def opened(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[drm.Device]]:
    monkeypatch.setenv("SYNTROP_SYS_ROOT", str(tree))
    found = drm.devices()
    try:
        yield found
    finally:
        for device in found:
            device.close()


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("amdgpu", ("gpu", "renderD128", "amdgpu", "amd", "0000:03:00.0", 1374945280, 17163091968, 7, 0)),
        (
            "amdgpu-suspended",
            ("gpu", "renderD128", "amdgpu", "amd", "0000:03:00.0", 28311552, 17163091968, None, None),
        ),
        ("i915-lmem", ("gpu", "renderD128", "i915", "intel", "0000:03:00.0", 356515840, 6357516288, None, None)),
        ("i915-igpu", ("gpu", "renderD128", "i915", "intel", "0000:00:02.0", None, None, None, None)),
        ("xe-tiles", ("gpu", "renderD128", "xe", "intel", "0000:03:00.0", 1610612736, 34359738368, None, 1)),
        ("xe-upstream", ("gpu", "renderD128", "xe", "intel", "0000:03:00.0", None, 12884901888, None, 0)),
        ("nvidia", ("gpu", "renderD128", "nvidia", "nvidia", "0000:01:00.0", None, None, None, 0)),
        ("npu", ("npu", "accel0", "intel_vpu", "intel", "0000:00:0b.0", 12582912, None, None, None)),
        ("bad-numbers", ("gpu", "renderD128", "amdgpu", "amd", "0000:03:00.0", None, None, None, None)),
    ],
)
def test_one_device(tree: str, expected: tuple[object, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(TREES / tree, monkeypatch) as (device,):
        assert (
            device.kind,
            device.name,
            device.driver,
            device.vendor,
            device.slot,
            device.memory_used,
            device.memory_total,
            device.busy_percent,
            device.numa_node,
        ) == expected


def test_many_devices_in_the_order_of_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(TREES / "many", monkeypatch) as found:
        assert [(device.name, device.driver, device.vendor) for device in found] == [
            ("renderD128", "virtio-gpu", "virtual"),
            ("renderD129", "amdgpu", "amd"),
            ("renderD130", "vgem", "virtual"),
            ("renderD1000", "nouveau", "nvidia"),
            ("accel0", "intel_vpu", "intel"),
        ]


def test_a_kernel_without_devices_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, monkeypatch) as found:
        assert found == []


def test_what_is_no_render_node_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(TREES / "amdgpu", tree, symlinks=True)
    for name in ("card0-HDMI-A-1", "renderDx", "version", "renderD"):
        (tree / "class" / "drm" / name).mkdir()
    (tree / "class" / "drm" / "renderD129").mkdir()  # unplugged: it has no device any more
    with opened(tree, monkeypatch) as found:
        assert [device.name for device in found] == ["renderD128"]


def test_samples_follow_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(TREES / "amdgpu", tree, symlinks=True)
    folder = tree / "devices" / "pci0000:00" / "0000:00:01.1" / "0000:03:00.0"
    with opened(tree, monkeypatch) as (device,):
        for used, busy, expected in (
            ("5\n", "100\n", (5, 100)),
            ("17163091968\n", "3\n", (17163091968, 3)),
            ("7", "101\n", (7, None)),
            ("-1\n", "\n", (None, None)),
            ("", "N/A", (None, None)),
            ("12\n", "50\n", (12, 50)),
        ):
            (folder / "mem_info_vram_used").write_text(used)
            (folder / "gpu_busy_percent").write_text(busy)
            device.sample()
            assert (device.memory_used, device.busy_percent) == expected
        (folder / "power" / "runtime_status").write_text("suspended\n")
        device.sample()
        assert (device.memory_used, device.busy_percent) == (12, None)


def test_more_available_than_there_is_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(TREES / "i915-lmem", tree, symlinks=True)
    card = tree / "class" / "drm" / "card0"
    (card / "lmem_avail_bytes").write_text("6357516289\n")
    with opened(tree, monkeypatch) as (device,):
        assert (device.memory_used, device.memory_total) == (None, 6357516288)


def test_tiles_of_which_one_is_unknown_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(TREES / "xe-tiles", tree, symlinks=True)
    tile = tree / "devices" / "pci0000:00" / "0000:00:01.0" / "0000:03:00.0" / "tile1"
    (tile / "memory" / "vram0" / "used").unlink()
    (tile / "physical_vram_size_bytes").unlink()
    with opened(tree, monkeypatch) as (device,):
        assert (device.memory_used, device.memory_total) == (None, None)


def test_the_steady_state_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for tree in ("amdgpu", "i915-lmem", "xe-tiles", "npu", "bad-numbers"):
        with opened(TREES / tree, monkeypatch) as (device,):
            for _ in range(50):
                device.sample()
            before = sys.getallocatedblocks()
            for _ in range(500):
                device.sample()
            assert sys.getallocatedblocks() - before <= 2, tree


def test_a_sample_allocates_next_to_nothing_at_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    with opened(TREES / "amdgpu", monkeypatch) as (device,):
        tracemalloc.start()
        try:
            device.sample()
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(100):
                device.sample()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak - before < 512  # a few numbers, dropped at once: no file contents, no text


def test_descriptors_are_closed_with_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with opened(TREES / "many", monkeypatch) as found:
        assert len(os.listdir("/proc/self/fd")) > before
        found[0].close()
        found[0].close()
        found[1].sample()
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_error_while_opening_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setenv("SYNTROP_SYS_ROOT", str(TREES / "many"))

    def fail(_self: drm.Device) -> None:
        raise MemoryError

    monkeypatch.setattr(drm.Device, "sample", fail)
    with pytest.raises(MemoryError):
        drm.devices()
    assert len(os.listdir("/proc/self/fd")) == before
