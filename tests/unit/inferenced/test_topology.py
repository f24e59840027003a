# SPDX-License-Identifier: Apache-2.0
"""Each machine of `tests/data/machines` by its planes and ways, and what no machine should have."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.varlink import idl
from syntrop.inferenced import pcie, topology, topology_wire
from syntrop.inferenced.gauges import Fill, Gauges, fill, within
from syntrop.inferenced.plane import Plane, Topology

Machine = Callable[[str], Path]
GEN4_16, GEN4_8, GEN4_4, GEN3_8 = 31_507_692_304, 15_753_846_152, 7_876_923_076, 7_876_923_072


def planes(found: Topology) -> dict[str, tuple[Any, ...]]:
    return {id: (one.driver, one.total, one.host, one.numa_node) for id, one in found.planes.items()}


def ways(found: Topology) -> dict[tuple[str, str], tuple[Any, ...]]:
    return {
        (link.a, link.b): (link.type, link.bandwidth, link.latency, link.distance)
        for id in found.planes
        for _, link in found.links(id)
    }


def test_a_card_that_idles_has_the_bandwidth_that_it_will_have(machine: Machine) -> None:
    machine("amd-card")
    found = topology.read()
    assert planes(found) == {
        "cpu0": ("", 33564069888, None, 0),
        "gpu-0000:06:00.0": ("amdgpu", 25753026560, None, None),
    }
    assert ways(found) == {("cpu0", "gpu-0000:06:00.0"): ("pcie", GEN4_16, 950, 13)}
    cpu, gpu = found.planes.values()
    assert (cpu.name, cpu.cores) == ("AMD Ryzen 7 5800X 8-Core Processor", 2)
    assert cpu.features == ("avx2", "fma", "f16c")
    assert (gpu.name, gpu.vendor, gpu.device, gpu.slot) == (
        "AMD GPU 1002:744c",
        "amd",
        "dri/renderD128",
        "0000:06:00.0",
    )
    assert gpu.features == ("gfx1100",)


def test_two_cards_with_xgmi(machine: Machine) -> None:
    root = machine("amd-pair")
    found = topology.read()
    a, b = "gpu-0000:43:00.0", "gpu-0000:63:00.0"
    assert found.planes[a].name == "AMD INSTINCT MI210 (MCM) OAM AC MBA"
    assert found.planes[a].features == ("gfx90a",)
    assert ways(found) == {
        ("cpu0", a): ("pcie", GEN4_16, 950, 13),
        ("cpu0", b): ("pcie", GEN4_16, 950, 13),
        (a, b): ("xgmi", 100_000_000_000, 300, 10),
    }
    shutil.rmtree(root / "sys/class/kfd")  # a kernel without it, or a sandbox that hides it
    assert ways(topology.read())[a, b] == ("xgmi", None, 300, 10)
    hive = root / "sys/class/drm/renderD129/device/xgmi_hive_info/xgmi_hive_id"
    hive.write_text("12873467392137459214\n")
    assert ways(topology.read())[a, b] == ("pcie", GEN4_16, 1400, 16)


def test_a_gpu_in_the_processor(machine: Machine) -> None:
    machine("intel-igpu")
    found = topology.read()
    assert planes(found) == {
        "cpu0": ("", 16550379520, None, 0),
        "gpu-0000:00:02.0": ("i915", 16550379520, "cpu0", None),
    }
    assert ways(found) == {("cpu0", "gpu-0000:00:02.0"): ("memory", None, 100, 0)}
    assert found.memory("gpu-0000:00:02.0") == "cpu0"
    assert {"avx512f", "vnni"} <= set(found.planes["cpu0"].features)


def test_arc_beside_the_processors_own(machine: Machine) -> None:
    root = machine("intel-arc")
    found = topology.read()
    assert planes(found) == {
        "cpu0": ("", 67108864000, None, 0),
        "gpu-0000:00:02.0": ("xe", 33554432000, "cpu0", None),
        "gpu-0000:03:00.0": ("xe", 12884901888, None, None),
    }
    # Not the 2.5 GT/s × 1 inside the card.
    assert ways(found)["cpu0", "gpu-0000:03:00.0"] == ("pcie", GEN4_8, 950, 13)
    assert ways(found)["gpu-0000:00:02.0", "gpu-0000:03:00.0"] == ("pcie", GEN4_8, 950, 13)
    # A kernel that does not tell its memory: a card all the same, so its memory is unknown and not the host's.
    (root / "sys/class/drm/renderD129/device/tile0/physical_vram_size_bytes").unlink()
    assert planes(topology.read())["gpu-0000:03:00.0"] == ("xe", None, None, None)


def test_nvidias_without_nvml(machine: Machine) -> None:
    root = machine("nvidia-pair")
    found = topology.read()
    a, b = "gpu-0000:01:00.0", "gpu-0000:02:00.0"
    assert planes(found) == {
        "cpu0": ("", 67325091840, None, 0),
        a: ("nvidia", None, None, None),
        b: ("nvidia", None, None, None),
    }
    assert found.planes[a].name == "NVIDIA GeForce RTX 3090"
    assert ways(found) == {
        ("cpu0", a): ("pcie", GEN3_8, 650, 11),
        ("cpu0", b): ("pcie", GEN3_8, 650, 11),
        (a, b): ("pcie", GEN3_8, 800, 12),
    }
    # The driver alone, without DRM: its own device files.
    shutil.rmtree(root / "sys/class/drm")
    bare = topology.read()
    assert [(id, plane.device) for id, plane in bare.planes.items()] == [
        ("cpu0", None),
        (a, "nvidia0"),
        (b, "nvidia1"),
    ]
    assert ways(bare) == ways(found)


def test_memory_that_the_operator_states(machine: Machine) -> None:
    machine("nvidia-pair")
    found = topology.read()
    stated = topology.stated(found, {"gpu-0000:01:00.0": 24 << 30, "cpu0": 1, "gpu-none": 1})
    assert [plane.total for plane in stated.planes.values()] == [67325091840, 24 << 30, None]
    assert ways(stated) == ways(found)


def test_a_laptop_with_a_gpu_and_an_npu_of_amd(machine: Machine) -> None:
    root = machine("npu-amd")
    found = topology.read()
    gpu, npu = "gpu-0000:c4:00.0", "npu-0000:c5:00.1"
    assert planes(found) == {
        "cpu0": ("", 32823615488, None, 0),
        gpu: ("amdgpu", 16411807744, "cpu0", None),
        npu: ("amdxdna", 32823615488, "cpu0", None),
    }
    assert {one[3] for one in ways(found).values()} == {0}
    assert found.planes[npu].device == "accel/accel0"
    # Ninety-six of 128 GB cut out for the GPU are no memory of the host's any more.
    device = root / "sys/class/drm/renderD128/device"
    (device / "mem_info_vram_total").write_text("103079215104\n")
    assert planes(topology.read())[gpu] == ("amdgpu", 103079215104, None, None)


def test_a_laptop_with_a_gpu_and_an_npu_of_intel(machine: Machine) -> None:
    machine("npu-intel")
    assert planes(topology.read()) == {
        "cpu0": ("", 33297530880, None, 0),
        "gpu-0000:00:02.0": ("i915", 33297530880, "cpu0", None),
        "npu-0000:00:0b.0": ("intel_vpu", 33297530880, "cpu0", None),
    }


def test_two_nodes(machine: Machine) -> None:
    machine("two-nodes")
    found = topology.read()
    near, far = "gpu-0000:16:00.0", "gpu-0000:98:00.0"
    assert planes(found) == {
        "cpu0": ("", 128 << 30, None, 0),
        "cpu1": ("", 128 << 30, None, 1),  # and none for node 2, which only has memory
        near: ("amdgpu", 48301604864, None, 0),
        far: ("amdgpu", 48301604864, None, 1),
    }
    assert ways(found) == {
        ("cpu0", "cpu1"): ("memory", None, 210, 21),
        ("cpu0", near): ("pcie", GEN4_16, 650, 11),
        ("cpu0", far): ("pcie", GEN4_4, 760, 22),
        ("cpu1", near): ("pcie", GEN4_16, 760, 22),
        ("cpu1", far): ("pcie", GEN4_4, 650, 11),
        (near, far): ("pcie", GEN4_4, 910, 23),
    }
    assert {"amx-int8", "amx-bf16", "vnni", "bf16"} <= set(found.planes["cpu0"].features)
    assert [found.planes[id].cores for id in ("cpu0", "cpu1")] == [2, 4]


def test_where_a_device_is_on_no_known_node_it_counts_as_far(machine: Machine) -> None:
    root = machine("two-nodes")
    (root / "sys/class/drm/renderD128/device/numa_node").write_text("-1\n")
    found = ways(topology.read())
    assert found["cpu0", "gpu-0000:16:00.0"][3] == found["cpu1", "gpu-0000:16:00.0"][3] == 25


def test_no_accelerator(machine: Machine) -> None:
    machine("arm-board")
    found = topology.read()
    assert planes(found) == {"cpu0": ("", 8323596288, None, 0)}
    assert (found.planes["cpu0"].features, found.planes["cpu0"].cores) == (("neon", "dotprod"), 4)


def test_virtual_devices_have_unknown_memory(machine: Machine) -> None:
    root = machine("virtual")
    found = topology.read()
    assert planes(found) == {
        "cpu0": ("", 2077790208, None, 0),
        "gpu-0000:00:01.0": ("virtio_gpu", None, None, None),
        "gpu-vgem": ("vgem", None, None, None),
    }
    (root / "sys/devices/faux/vgem/driver").unlink()  # as before Linux 6.15
    assert planes(topology.read()) == planes(found)


def test_what_is_gone(machine: Machine) -> None:
    root = machine("two-nodes")
    before = topology.read()
    assert topology.gone(before, topology.read()) == ()
    (root / "sys/class/drm/renderD128").unlink()
    after = topology.read()
    assert topology.gone(before, after) == ("gpu-0000:16:00.0",)
    assert topology.gone(after, before) == ()
    (root / "sys/class/drm/renderD129/device/device").write_text("0x744c\n")  # another card in the same slot
    assert topology.gone(after, topology.read()) == ("gpu-0000:98:00.0",)


# --- how full ------------------------------------------------------------------------------------------------


def test_fills(machine: Machine) -> None:
    root = machine("amd-pair")
    with Gauges() as gauges:
        cpu, idle, busy = gauges.topology.planes.values()
        assert gauges.fill(cpu) == Fill(270173405184, 12475367424, 257698037760, True)
        assert gauges.fill(idle) == Fill(68702699520, 11223040, 68691476480, True)
        assert gauges.fill(busy).used == 34359738368
        (root / "sys/class/drm/renderD129/device/mem_info_vram_used").write_text("1073741824\n")
        gauges.sample()
        assert gauges.fill(busy).used == 1 << 30
        meminfo = root / "proc/meminfo"
        meminfo.write_text("MemTotal: 263841216 kB\nMemAvailable: 1024 kB\n")
        gauges.look()
        assert gauges.fill(cpu).lendable == 1 << 20


def test_a_device_in_the_hosts_memory_has_no_more_than_the_host(machine: Machine) -> None:
    root = machine("npu-amd")
    with Gauges() as gauges:
        cpu, gpu, npu = gauges.topology.planes.values()
        assert gauges.fill(gpu) == Fill(16411807744, 87130112, 16324677632, True)
        # What it has mapped is not told, but is in the host's use: what can be had is known all the same.
        assert gauges.fill(npu) == Fill(32823615488, None, 26726604800, True)
        (root / "proc/meminfo").write_text("MemTotal: 32054312 kB\nMemAvailable: 1048576 kB\n")
        gauges.look()
        assert [gauges.fill(one).lendable for one in (cpu, gpu, npu)] == [1 << 30] * 3


def test_descriptors_are_closed(machine: Machine) -> None:
    machine("amd-pair")
    before = len(os.listdir("/proc/self/fd"))
    with Gauges():
        assert len(os.listdir("/proc/self/fd")) > before
    topology.read()
    assert len(os.listdir("/proc/self/fd")) == before


SIZES = st.one_of(st.none(), st.integers(0, 1 << 50))


@given(SIZES, SIZES, st.integers(0, 1 << 50), SIZES, st.booleans())
def test_what_can_be_lent(
    total: int | None, used: int | None, own: int, others: int | None, complete: bool
) -> None:
    found = fill(total, used, own, others, complete)
    if total is None:
        assert (found.lendable, found.exact) == (None, False)
        return
    assert found.lendable is not None and 0 <= found.lendable <= total
    if used is not None:
        assert found.exact and found.lendable >= total - used  # what is used by ours is theirs already
    else:
        assert found.exact == (others is not None and complete)
    host = Fill(total, used, total // 2, True)
    for limited in (False, True):
        inside = within(found, host, limited=limited)
        assert inside.lendable is not None and inside.lendable <= total // 2


# --- as the interface shows it -------------------------------------------------------------------------------


def checked(method: str, reply: dict[str, Any]) -> dict[str, Any]:
    """The reply, if it is one by the interface."""
    interface = idl.load("io.syntrop.Inference1")
    return interface.check(interface.methods[method].output, reply)


@pytest.mark.parametrize(
    "name",
    ["amd-card", "amd-pair", "arm-board", "intel-arc", "intel-igpu", "npu-amd", "npu-intel", "nvidia-pair",
     "two-nodes", "virtual"],
)  # fmt: skip
def test_replies_are_by_the_interface(name: str, machine: Machine) -> None:
    machine(name)
    with Gauges() as gauges:
        found = gauges.topology
        fills = {id: gauges.fill(plane) for id, plane in found.planes.items()}
        whole = topology_wire.topology(found, fills, {}, gauges.memory)
        checked("GetTopology", whole)
        checked("ListPlanes", {"planes": topology_wire.planes(found, fills, {"cpu0": 5}, quarantined=["cpu0"])})
        checked("GetDrmWatermark", {"watermarks": topology_wire.watermarks(found, fills)})
        assert whole["total_ram"] >= whole["available_ram"] > 0
        assert whole["cpu_cores"] > 0
        for one in whole["planes"]:
            known = found.planes[one["id"]].total is not None
            assert (one["total_memory"] is not None) == known
            if not known:
                assert one["available_memory"] is None


def test_watermarks(machine: Machine) -> None:
    def marks(name: str, device: str | None = None) -> list[tuple[Any, ...]]:
        machine(name)
        with Gauges() as gauges:
            fills = {id: gauges.fill(plane) for id, plane in gauges.topology.planes.items()}
            return [tuple(one.values()) for one in topology_wire.watermarks(gauges.topology, fills, device)]

    percent = pytest.approx(5.339, abs=0.001)
    card = ("renderD128", "amd", 1374945280, 25753026560, percent, False)
    assert marks("amd-card") == [card]
    for name in ("renderD128", "dri/renderD128", "/dev/dri/renderD128", "gpu-0000:06:00.0"):
        assert marks("amd-card", name) == [card]
    assert marks("amd-card", "renderD129") == []
    assert marks("arm-board") == []
    assert marks("nvidia-pair")[0] == ("renderD128", "nvidia", None, None, None, True)
    assert marks("virtual")[1] == ("renderD129", "vgem", None, None, None, True)
    # Its own memory is told, but not how full it is; the processor's GPU has none.
    assert marks("intel-arc") == [
        ("renderD128", "intel", None, None, None, True),
        ("renderD129", "intel", None, 12884901888, None, True),
    ]
    assert marks("npu-amd")[0][2:4] == (87130112, 16411807744)
    assert marks("npu-intel")[1] == ("accel0", "intel", 12582912, None, None, True)


# --- PCI -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speed", "width", "expected"),
    [
        ("2.5 GT/s PCIe", "1", 250_000_000),
        ("5.0 GT/s PCIe", "16", 8_000_000_000),
        ("5 GT/s", "16", 8_000_000_000),
        ("8.0 GT/s PCIe", "16", 15_753_846_144),
        ("16.0 GT/s PCIe", "16", GEN4_16),
        ("32.0 GT/s PCIe", "16", 63_015_384_608),
        ("64.0 GT/s PCIe", "16", 121_000_000_000),
        ("Unknown", "16", None),
        ("16.0 GT/s PCIe", "0", None),
        ("16.0 GT/s PCIe", "255", None),
        ("16.0 GT/s PCIe", "-4", None),
        ("16.0 GT/s PCIe", "9" * 400, None),
        ("16.0 GT/s PCIe", "²", None),
        ("999.0 GT/s PCIe", "16", None),
        ("", "", None),
    ],
)
def test_bandwidth(speed: str, width: str, expected: int | None) -> None:
    assert pcie.bandwidth(speed, width) == expected


ROOT = "/sys/devices/pci0000:00"


def test_chains_and_bridges() -> None:
    switch = f"{ROOT}/0000:00:01.0/0000:01:00.0"
    a = pcie.chain(f"{switch}/0000:02:00.0/0000:03:00.0")
    b = pcie.chain(f"{switch}/0000:02:01.0/0000:04:00.0")
    c = pcie.chain("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0")
    assert a[0] == f"{ROOT}/0000:00:01.0" and a[-1].endswith("0000:03:00.0") and len(a) == 4
    assert pcie.bridges(a, ()) == 3
    assert pcie.bridges(a, b) == 2  # down one port of the switch and up another
    assert pcie.bridges(a, c) == 4
    assert pcie.bridges((), ()) == 0
    assert pcie.chain("/sys/devices/platform/vgem") == ()
    assert pcie.chain(f"{ROOT}/0000:00:01.0/virtio0") == (f"{ROOT}/0000:00:01.0",)
    assert len(pcie.chain("/0000:00:01.0" * 5000)) == 32


# --- what no machine should have -----------------------------------------------------------------------------

FILES = (
    "proc/cpuinfo", "proc/meminfo", "sys/devices/system/cpu/online", "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node0/distance", "sys/devices/system/node/node1/meminfo",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
    "sys/class/drm/renderD128/device/mem_info_vram_total", "sys/class/drm/renderD128/device/mem_info_vram_used",
    "sys/class/drm/renderD128/device/numa_node", "sys/class/drm/renderD128/device/max_link_speed",
    "sys/class/drm/renderD128/device/current_link_width", "sys/class/drm/renderD128/device/vendor",
    "sys/class/drm/renderD128/device/xgmi_hive_info/xgmi_hive_id",
    "sys/class/kfd/kfd/topology/nodes/1/properties", "sys/class/kfd/kfd/topology/nodes/1/io_links/1/properties",
    "proc/driver/nvidia/gpus/0000:01:00.0/information",
)  # fmt: skip
GARBAGE = (
    b"", b"\0" * 64, b"\xff\xfe\n", b"-1\n", b"9" * 5000, b"9" * 18, b"0-99999999\n", b"1e9 kB", b": : :\n" * 4000,
    "٣٤ kB ²\n".encode(), b"MemTotal: 99999999999999999999999 kB\nMemAvailable: -5 kB\n",
    b"type 11\nnode_to 99999\n", b"drm_render_minor 128\ngfx_target_version 18446744073709551615\n",
    b"Model: \x1b[31m\nDevice Minor: ../..\n",
)  # fmt: skip


@pytest.mark.parametrize("name", ["amd-pair", "two-nodes", "nvidia-pair"])
def test_garbage(name: str, machine: Machine) -> None:
    root = machine(name)
    for path in FILES:
        at = root / path
        if not at.parent.is_dir():
            continue
        before = at.read_bytes() if at.exists() else None
        for text in GARBAGE:
            at.write_bytes(text)
            plausible(topology.read())
        at.unlink()
        plausible(topology.read())
        at.mkdir()
        plausible(topology.read())
        at.rmdir()
        os.mkfifo(at)  # would block whoever opens it for reading
        plausible(topology.read())
        at.unlink()
        at.symlink_to(at.name)  # leads to itself
        plausible(topology.read())
        at.unlink()
        if before is not None:
            at.write_bytes(before)


def plausible(found: Topology) -> None:
    assert any(plane.kind == "cpu" for plane in found.planes.values())
    for id, plane in found.planes.items():
        assert plane.total is None or 0 <= plane.total < 1 << 63
        assert plane.host is None or plane.host in found.planes
        assert plane.name.isprintable() and len(plane.name) <= 160
        for _, link in found.links(id):
            assert link.distance >= 0 and link.latency > 0
            assert link.bandwidth is None or link.bandwidth > 0
    checked("ListPlanes", {"planes": topology_wire.planes(found, {}, {})})


def test_links_that_lead_round_in_circles(machine: Machine) -> None:
    root = machine("amd-card")
    for group, name in (("drm", "renderD7"), ("accel", "accel0")):
        folder = root / "sys/class" / group
        folder.mkdir(exist_ok=True)
        (folder / name).symlink_to(name)
        (folder / f"{name}1").mkdir()
        (folder / f"{name}1" / "device").symlink_to("device")
    shutil.rmtree(root / "sys/devices/system/node")
    (root / "sys/devices/system/node").symlink_to("node")
    (root / "proc/driver/nvidia/gpus/0000:09:00.0").mkdir(parents=True)
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:09:00.0").symlink_to("0000:09:00.0")
    found = topology.read()
    assert list(found.planes) == ["cpu0", "gpu-0000:06:00.0", "gpu-0000:09:00.0"]
    plausible(found)


def test_devices_that_share_a_name_get_two(machine: Machine) -> None:
    root = machine("virtual")
    (root / "sys/class/drm/renderD130").symlink_to("../../devices/faux/vgem/drm/renderD129")
    assert [id for id in topology.read().planes if "vgem" in id] == ["gpu-vgem", "gpu-vgem-renderD130"]


def test_odd_names_of_devices_are_not_taken_over(machine: Machine) -> None:
    root = machine("virtual")
    odd = root / "sys/devices/platform" / "a b\n"
    odd.mkdir(parents=True)
    node = root / "sys/class/drm/renderD131"
    node.mkdir()
    (node / "device").symlink_to(odd)
    found = topology.read()
    assert "gpu-renderD131" in found.planes
    plausible(found)


def test_a_plane_is_a_value() -> None:
    assert Plane("cpu0", "x", "cpu", 1) == Plane("cpu0", "x", "cpu", 1)
