# SPDX-License-Identifier: Apache-2.0
"""`syntropctl devices`, asking an endpoint in this process that tells of a machine in `tests/data/machines`."""

from __future__ import annotations

import importlib.util
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import loop, paths
from syntrop.common.varlink.server import Identity, Server
from syntrop.ctl import arbiter, commands, devices
from syntrop.inferenced import topology_wire
from syntrop.inferenced.gauges import Gauges

Show = Callable[..., tuple[int, str, str]]


class Inference1:
    async def GetTopology(self, call: Any) -> dict[str, Any]:
        with Gauges() as gauges:
            found = gauges.topology
            fills = {id: gauges.fill(plane) for id, plane in found.planes.items()}
            return topology_wire.topology(found, fills, {}, gauges.memory, quarantined=["gpu-0000:98:00.0"])


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Show:
    """Runs a command line on a machine: exit status, standard output, standard error."""
    spec = importlib.util.spec_from_file_location("syntrop_machines", Path(__file__).parents[2] / "machines.py")
    assert spec is not None and spec.loader is not None
    machines = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(machines)
    monkeypatch.setenv("SYNTROP_RUN_ROOT", str(tmp_path / "run"))

    def run(machine: str, *words: str) -> tuple[int, str, str]:
        for variable, value in machines.unpack(machine, tmp_path / machine).items():
            monkeypatch.setenv(variable, value)
        options = commands.parsed(["devices", *words])
        path = Path(paths.endpoint(arbiter.ENDPOINT))
        path.parent.mkdir(parents=True)

        async def main() -> int:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
                listener.listen()
                listener.setblocking(False)
                server = Server(Identity("v", "p", "1", "u"), {arbiter.ENDPOINT: Inference1()})
                verb = devices.devices(options.plane, links=options.links, as_json=options.json)
                asking = loop.spawn(verb, name="asking")
                with loop.deadline(60):
                    await loop.readable(listener.fileno())
                    accepted, _ = listener.accept()
                    accepted.setblocking(False)
                    connection = server.connect(accepted)
                    assert connection is not None
                    await connection.run()
                    status = await asking
                loop.forget(listener.fileno())
                return status

        status = loop.run(main())
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_a_table(show: Show) -> None:
    status, out, _ = show("two-nodes")
    assert status == 0
    head, *lines = out.splitlines()
    assert head.split() == ["PLANE", "KIND", "MEMORY", "IN", "USE", "AVAILABLE", "DEVICE"]
    assert lines[0].split("  ")[0] == "cpu0"
    assert "45.0 GiB" in lines[2] and lines[2].endswith("AMD GPU 1002:7448")
    assert lines[3].endswith("AMD GPU 1002:7448 (in quarantine)")
    assert lines[-1] == "6 cores; 280.0 GiB of 320.0 GiB of host memory can be had"
    assert len({line.index("GiB") for line in lines[:4]}) == 1  # columns


def test_what_is_unknown_is_no_number(show: Show) -> None:
    _, out, _ = show("nvidia-pair")
    line = out.splitlines()[2]
    assert line.count("unknown") == 3
    assert not any(character.isdigit() for character in line.partition("gpu  ")[2].partition("NVIDIA")[0])


def test_ways(show: Show) -> None:
    _, out, _ = show("amd-pair", "--links")
    assert out.splitlines()[5:8] == [
        "cpu0 – gpu-0000:43:00.0: pcie, distance 13, 31.5 GB/s",
        "cpu0 – gpu-0000:63:00.0: pcie, distance 13, 31.5 GB/s",
        "gpu-0000:43:00.0 – gpu-0000:63:00.0: xgmi, distance 10, 100.0 GB/s",
    ]


def test_one_plane(show: Show) -> None:
    _, out, _ = show("npu-amd", "renderD128")
    lines = out.splitlines()
    assert len([line for line in lines if line.startswith("gpu-0000:c4:00.0  ")]) == 1
    assert "uses memory of cpu0" in out
    assert "driver:    amdgpu" in lines
    assert "device:    /dev/dri/renderD128" in lines
    assert "gpu-0000:c4:00.0 – cpu0: memory, distance 0" in lines
    assert "gpu-0000:c4:00.0 – npu-0000:c5:00.1: memory, distance 0" in lines


def test_json(show: Show) -> None:
    _, out, _ = show("intel-igpu", "--json")
    found = json.loads(out)
    assert [one["id"] for one in found["planes"]] == ["cpu0", "gpu-0000:00:02.0"]
    assert found["cpu_cores"] == 8


def test_one_plane_as_json(show: Show) -> None:
    _, out, _ = show("intel-igpu", "gpu-0000:00:02.0", "--json")
    assert json.loads(out)["host_plane_id"] == "cpu0"


def test_no_such_plane(show: Show) -> None:
    status, out, err = show("arm-board", "gpu7")
    assert (status, out) == (1, "")
    assert err == "syntropctl: there is no plane gpu7; `syntropctl devices` lists them\n"


def test_nobody_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SYNTROP_RUN_ROOT", str(tmp_path))
    assert arbiter.run(devices.devices(None, links=False, as_json=False)) == 1
    assert "nobody serves" in capsys.readouterr().err
