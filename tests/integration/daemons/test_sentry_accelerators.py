# SPDX-License-Identifier: Apache-2.0
"""A gang whose device fails, with inferenced as a process on a machine of two GPUs: the faulty plane goes into
quarantine, the gang is released, and the healthy plane is leased again at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import loop
from syntrop.sentry import accelerators, gpu
from syntrop.sentry.peers import INFERENCED, PeerError, Peers

INFERENCE1 = "io.syntrop.Inference1."
SOCKET, SENTRY = "io.syntrop.Inference1", "sentry.sock"
FIRST, SECOND = "gpu-0000:43:00.0", "gpu-0000:63:00.0"
GIB = 1 << 30
LOGS = Path(__file__).parents[2] / "data" / "incidents" / "gpu"


@pytest.fixture
def ask(arbiter: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("SYNTROP_RUN_ROOT", str(arbiter.run))
    monkeypatch.setenv("SYNTROP_SYS_ROOT", arbiter.environment["SYNTROP_SYS_ROOT"])
    monkeypatch.setattr(accelerators, "TIMEOUT", 120.0)  # inferenced may be slow to start on a busy machine

    def run(work: Callable[[Peers], Coroutine[Any, Any, Any]]) -> Any:
        async def main() -> Any:
            peers = Peers({INFERENCED: SENTRY})
            try:
                return await work(peers)
            finally:
                peers.close()

        return loop.run(main())

    return run


def log(name: str, device: str, log_device: str) -> list[str]:
    """A driver's lines, of our machine's device."""
    text = (LOGS / f"{name}.log").read_text()
    return text.replace(log_device, device).splitlines()


def test_the_faulty_plane_is_isolated_and_the_healthy_one_offered(
    launch: Any, arbiter: Any, ask: Callable[..., Any]
) -> None:
    client = launch.client(arbiter, SOCKET)
    parts = [
        {"role": f"stage{at}", "memory_bytes": GIB, "plane": plane} for at, plane in enumerate((FIRST, SECOND))
    ]
    gang = client.call(INFERENCE1 + "AcquireCompositeLease", priority="Interactive", slices=parts)
    assert gang.error is None, gang.parameters
    lines = log("amdgpu-bus", "0000:63:00.0", "0000:83:00.0")

    found = ask(lambda peers: accelerators.triage_planes(lines, peers, unit="train.service"))
    assert found is not None
    assert (found.plane, found.healthy) == (SECOND, (FIRST,))
    assert (found.verdict.category, found.verdict.action) == (gpu.BUS_ERROR, gpu.QUARANTINE)
    assert "0000:63:00.0" in found.sentence

    assert ask(lambda peers: accelerators.isolate(found, peers)) == [gang.parameters["lease_id"]]
    planes = client.call(INFERENCE1 + "ListPlanes").parameters["planes"]
    assert {one["id"]: one["is_quarantined"] for one in planes if one["kind"] == "gpu"} == {
        FIRST: False,
        SECOND: True,
    }
    # What the gang held of the healthy plane can be leased at once, and nothing of the faulty one.
    again = client.call(INFERENCE1 + "AcquireLease", priority="Interactive", memory_bytes=GIB, plane=FIRST)
    assert again.error is None, again.parameters
    refused = client.call(INFERENCE1 + "AcquireLease", priority="Interactive", memory_bytes=GIB, plane=SECOND)
    assert refused.error == INFERENCE1 + "PlaneQuarantined"
    assert found.verdict.explanation in refused.parameters["reason"]
    # The same lines tell nothing new: what is out of use is not blamed again.
    assert ask(lambda peers: accelerators.triage_planes(lines, peers)) is None

    ask(lambda peers: accelerators.clear(peers, SECOND))
    back = client.call(INFERENCE1 + "AcquireLease", priority="Interactive", memory_bytes=GIB, plane=SECOND)
    assert back.error is None, back.parameters


def test_a_device_that_came_back_is_not_isolated(arbiter: Any, ask: Callable[..., Any]) -> None:
    lines = log("amdgpu-hang-recovered", "0000:43:00.0", "0000:28:00.0")
    found = ask(lambda peers: accelerators.triage_planes(lines, peers))
    assert (found.plane, found.verdict.action) == ("", gpu.BACK_OFF)
    assert found.healthy == (FIRST, SECOND)
    assert ask(lambda peers: accelerators.isolate(found, peers)) == []


def test_errors_of_a_port_are_those_of_what_is_behind_it(arbiter: Any, ask: Callable[..., Any]) -> None:
    devices = ["0000:43:00.0", "0000:63:00.0"]
    sysfs = Path(os.environ["SYNTROP_SYS_ROOT"]) / "bus" / "pci" / "devices"
    sysfs.mkdir(parents=True, exist_ok=True)
    for device, above in zip(devices, ("40", "60"), strict=True):
        if not (sysfs / device).is_symlink():
            (found,) = (sysfs.parents[2] / "devices").glob(f"pci0000:{above}/**/{device}")
            (sysfs / device).symlink_to(found)
    behind = accelerators.bridges(devices)
    assert behind["0000:40:01.1"] == ["0000:43:00.0"]
    assert behind["0000:62:00.0"] == ["0000:63:00.0"]
    lines = log("aer-port", "0000:40:01.1", "0000:00:03.0")
    gang = ask(lambda peers: accelerators.triage_planes(lines, peers))
    assert (gang.plane, gang.verdict.category) == (FIRST, gpu.BUS_ERROR)


def test_other_lines_ask_nobody_and_unknown_planes_are_told(ask: Callable[..., Any]) -> None:
    class Nobody:
        async def call(self, *_words: Any, **_options: Any) -> dict[str, Any]:
            raise AssertionError("nothing was to be asked")

    ordinary = ["usb 1-1: new device", "EXT4-fs (sda1): mounted filesystem"]
    assert loop.run(accelerators.triage_planes(ordinary, Nobody())) is None  # type: ignore[arg-type]
    for work in (
        lambda peers: accelerators.quarantine(peers, "gpu-0000:ff:00.0", "x"),
        lambda peers: accelerators.clear(peers, "gpu-0000:ff:00.0"),
    ):
        with pytest.raises(PeerError) as caught:
            ask(work)
        assert accelerators.is_unknown(caught.value)
