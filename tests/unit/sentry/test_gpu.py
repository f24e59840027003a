# SPDX-License-Identifier: Apache-2.0
"""What befell a gang, from the kernel's log in the vendors' own words."""

from __future__ import annotations

import captured
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.sentry import gpu
from syntrop.sentry.gpu import BUS_ERROR, DRIVER_HANG, ECC, MEMORY_EXHAUSTED, PEER_DMA, PROGRAM, triage

LOGS = {path.stem: path.read_text().splitlines() for path in sorted((captured.DATA / "gpu").glob("*.log"))}
PEER = "0000:ff:00.0"  # a healthy member of each gang

# Log, faulty or only hit device, category, action.
EXPECTED = {
    "aer-corrected": ("0000:08:00.0", "none", gpu.NOTHING),
    "aer-port": ("0000:03:00.0", BUS_ERROR, gpu.QUARANTINE),
    "amdgpu-bus": ("0000:83:00.0", BUS_ERROR, gpu.QUARANTINE),
    "amdgpu-ecc": ("0000:c3:00.0", ECC, gpu.QUARANTINE),
    "amdgpu-hang-old-kernel": ("0000:0c:00.0", DRIVER_HANG, gpu.QUARANTINE),
    "amdgpu-hang-recovered": ("0000:28:00.0", DRIVER_HANG, gpu.BACK_OFF),
    "amdgpu-page-fault": ("0000:2f:00.0", PROGRAM, gpu.RESTART),
    "amdgpu-sdma": ("0000:33:00.0", PEER_DMA, gpu.QUARANTINE),
    "amdgpu-soft": ("0000:03:00.0", "none", gpu.NOTHING),
    "amdgpu-vram": ("0000:04:00.0", MEMORY_EXHAUSTED, gpu.SHRINK),
    "i915-hang": ("0000:00:02.0", DRIVER_HANG, gpu.BACK_OFF),
    "i915-reset-fails": ("0000:00:02.0", DRIVER_HANG, gpu.QUARANTINE),
    "nvidia-bus": ("0000:2a:00.0", BUS_ERROR, gpu.QUARANTINE),
    "nvidia-ecc": ("0000:52:00.0", ECC, gpu.QUARANTINE),
    "nvidia-gsp": ("0000:61:00.0", DRIVER_HANG, gpu.QUARANTINE),
    "nvidia-nvlink": ("0000:65:00.0", PEER_DMA, gpu.QUARANTINE),
    "nvidia-nvlink5": ("0018:01:00.0", PEER_DMA, gpu.QUARANTINE),
    "nvidia-program": ("0000:cb:00.0", PROGRAM, gpu.RESTART),
    "nvidia-vram": ("0000:0a:00.0", MEMORY_EXHAUSTED, gpu.SHRINK),
    "nvidia-vram-open": ("0000:01:00.0", MEMORY_EXHAUSTED, gpu.SHRINK),
    "peer-amd-vi": ("0000:07:00.0", PEER_DMA, gpu.QUARANTINE),
    "peer-dmar": ("0000:01:00.0", PEER_DMA, gpu.QUARANTINE),
    "xe-hang": ("0000:3d:00.0", DRIVER_HANG, gpu.BACK_OFF),
    "xe-vram": ("0000:06:00.0", MEMORY_EXHAUSTED, gpu.SHRINK),
    "xe-wedged": ("0000:03:00.0", DRIVER_HANG, gpu.QUARANTINE),
}
BEHIND = {"0000:00:03.0": ["0000:03:00.0"]}


def test_every_log_is_expected_to_be_something() -> None:
    assert sorted(EXPECTED) == sorted(LOGS)


@pytest.mark.parametrize("name", sorted(EXPECTED))
@pytest.mark.parametrize("stamped", [True, False])
def test_the_classes_are_told_apart_and_healthy_planes_are_offered(name: str, stamped: bool) -> None:
    device, category, action = EXPECTED[name]
    lines = LOGS[name] if stamped else [line.split("] ", 1)[1] for line in LOGS[name]]
    found = triage(lines, [device, PEER], behind=BEHIND)
    assert (found.category, found.action) == (category, action), found
    blamed = action == gpu.QUARANTINE
    assert found.faulty == (device if blamed else "")
    assert found.healthy == ((PEER,) if blamed else (device, PEER))
    assert all(0 <= number < len(lines) for number in found.evidence)
    assert bool(found.evidence) == (category != "none")


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_gang_that_is_not_concerned_is_left_alone(name: str) -> None:
    found = triage(LOGS[name], ["0000:aa:00.0", "0000:ab:00.0"])
    assert (found.category, found.faulty, found.healthy) == ("none", "", ("0000:aa:00.0", "0000:ab:00.0"))


def test_what_follows_from_another_fault_is_no_fault_of_its_own() -> None:
    found = triage(LOGS["nvidia-bus"], ["0000:2a:00.0", "0000:3b:00.0"])
    assert found.faulty == "0000:2a:00.0"
    assert found.healthy == ("0000:3b:00.0",)
    assert "Xid 79" in found.explanation


def test_of_two_ends_of_a_link_the_first_to_tell_is_blamed_and_the_other_named() -> None:
    found = triage(LOGS["nvidia-nvlink"], ["0000:65:00.0", "0000:b9:00.0"])
    assert found.faulty == "0000:65:00.0"
    assert "0000:b9:00.0 told of it too" in found.explanation


def test_the_graver_fault_explains_the_lesser() -> None:
    lines = [*LOGS["nvidia-program"], "NVRM: Xid (PCI:0000:cb:00): 79, GPU has fallen off the bus."]
    found = triage(lines, ["0000:CB:00.0"])
    assert (found.category, found.severity) == (BUS_ERROR, gpu.CRITICAL)


def test_a_device_that_is_alone_has_no_peer() -> None:
    found = triage(LOGS["amdgpu-sdma"], ["0000:33:00.0"])
    assert (found.category, found.action, found.recovered) == (DRIVER_HANG, gpu.BACK_OFF, True)


def test_coming_back_again_and_again_is_no_health() -> None:
    assert triage(LOGS["xe-hang"] * 2, ["0000:3d:00.0"]).action == gpu.BACK_OFF
    found = triage(LOGS["xe-hang"] * gpu.HANGS_MAX, ["0000:3d:00.0", PEER])
    assert (found.action, found.faulty, found.recovered) == (gpu.QUARANTINE, "0000:3d:00.0", True)


def test_the_drivers_dump_is_named() -> None:
    assert triage(LOGS["xe-hang"], ["0000:3d:00.0"]).dump == "/sys/class/drm/card0/device/devcoredump/data"
    assert triage(LOGS["amdgpu-hang-recovered"], ["0000:28:00.0"]).dump.endswith("card1/device/devcoredump/data")


ALL = [line for lines in LOGS.values() for line in lines]
DEVICES = sorted({device for device, _, _ in EXPECTED.values()})


@given(
    st.lists(st.one_of(st.sampled_from(ALL), st.text(max_size=80)), max_size=40),
    st.lists(st.sampled_from(DEVICES), min_size=1, max_size=4, unique=True),
)
def test_whatever_the_log_a_verdict_names_members_only(lines: list[str], members: list[str]) -> None:
    found = triage(lines, members, behind=BEHIND)
    assert found.faulty in ("", *members)
    assert set(found.healthy) == set(members) - {found.faulty}
    assert (found.action == gpu.QUARANTINE) == bool(found.faulty)
    assert found.category in (*gpu.CATEGORIES, "none")


def test_no_line_takes_long() -> None:
    for part in (
        "NVRM: Xid (PCI:",
        "amdgpu ",
        "GPU reset ",
        "xgmi ",
        "uncorrectable 1 ",
        "[Hardware Error]: ",
        "0",
    ):
        triage([part * 4000] * 50, ["0000:01:00.0"])
