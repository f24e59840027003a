# SPDX-License-Identifier: Apache-2.0
"""What holds for each of the daemons: activation, who it is, what it does not do yet, and that it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import syntrop
from syntrop.common.varlink import idl
from syntrop.common.varlink.compile import compile_all

NAMES = ["contextd", "inferenced", "modeld", "systemd-sentry", "toold"]


def endpoints(launch: Any, name: str) -> list[str]:
    return [endpoint for endpoint, _ in launch.daemons[name][1] if endpoint != "gateway.sock"]


@pytest.mark.parametrize("name", NAMES)
def test_it_says_who_it_is(launch: Any, name: str) -> None:
    unit = launch(name)
    interface = launch.daemons[name][2]
    for endpoint in endpoints(launch, name):
        client = launch.client(unit, endpoint)
        info = client.call("org.varlink.service.GetInfo").parameters
        assert info["vendor"] == "Syntropd Project"
        assert info["product"] == name
        assert info["version"] == syntrop.__version__
        assert info["url"] == f"https://github.com/syntropd/{name}"
        assert sorted(info["interfaces"]) == [interface, "org.varlink.service"]
        for known in info["interfaces"]:
            reply = client.call("org.varlink.service.GetInterfaceDescription", interface=known)
            assert reply.parameters["description"] == idl.load(known).description
        reply = client.call("org.varlink.service.GetInterfaceDescription", interface="io.syntrop.Nothing1")
        assert reply.error == "org.varlink.service.InterfaceNotFound"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_unknown_says_so(launch: Any, name: str) -> None:
    unit = launch(name)
    interface = launch.daemons[name][2]
    for endpoint in endpoints(launch, name):
        client = launch.client(unit, endpoint)
        reply = client.call(f"{interface}.Nonsense")
        assert reply.error == "org.varlink.service.MethodNotFound"


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_when_idle_and_comes_again(launch: Any, name: str) -> None:
    unit = launch(name, idle=0.3, start=False)
    for _ in range(3):
        # Idle connections do not hold it, whether they have carried a call or not.
        client = launch.client(unit, endpoints(launch, name)[0])
        client.send("org.varlink.service.GetInfo")
        unit.start()
        assert client.receive().error is None
        assert unit.wait() == 0
        assert client.socket.recv(1) == b""


@pytest.mark.parametrize("name", NAMES)
def test_it_stops_in_order_when_told(launch: Any, name: str) -> None:
    unit = launch(name)
    client = launch.client(unit, endpoints(launch, name)[0])
    assert client.call("org.varlink.service.GetInfo").error is None
    unit.process.terminate()
    assert unit.wait() == 0
    assert client.socket.recv(1) == b""


def test_inferenced_tells_what_it_knows(launch: Any) -> None:
    unit = launch("inferenced")
    for endpoint in endpoints(launch, "inferenced"):
        client = launch.client(unit, endpoint)
        status = client.call("io.syntrop.Inference1.GetStatus").parameters
        assert status["daemon"] == "inferenced"
        assert status["version"] == syntrop.__version__
        assert status["leases_count"] == 0
        pressure = client.call("io.syntrop.Inference1.GetPressure")
        if Path("/proc/pressure/memory").exists():
            assert pressure.parameters["level"] in ("normal", "elevated", "critical")
            assert status["pressure"] in ("normal", "elevated", "critical")
            for share in ("cpu_some", "memory_some", "io_some"):
                assert 0 <= pressure.parameters[share] <= 100
        else:
            assert pressure.error == "io.syntrop.Inference1.PressureUnavailable"
            assert status["pressure"] == "unknown"


def test_where_nothing_happened_lists_are_empty(launch: Any) -> None:
    sentry = launch.client(launch("systemd-sentry"), "systemd-sentry/sentry.sock")
    assert sentry.call("io.syntrop.Sentry1.GetStatus").parameters["open_incidents"] == 0
    assert sentry.call("io.syntrop.Sentry1.ListIncidents").parameters == {"incidents": []}
    tools = launch.client(launch("toold"), "io.syntrop.Tool1")
    assert tools.call("io.syntrop.Tool1.ListRollbacks").parameters == {"records": []}


FORBIDDEN = {
    "asyncio", "typing", "dataclasses", "logging", "argparse", "tomllib", "subprocess", "tempfile", "pathlib",
    "hashlib", "threading", "urllib", "ssl", "inspect", "varlink", "pystemd", "psutil", "pyudev", "numpy",
    "jinja2",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_it_has_loaded_after_its_first_reply(launch: Any, name: str, tmp_path: Path) -> None:
    compile_all(idl.FOLDER)  # as a build does; a checkout that was not built needs the parser
    # Run by the interpreter in the daemon's own process: writes what is loaded when it ends.
    out = tmp_path / "modules"
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(
        f"import atexit, sys\natexit.register(lambda: open({str(out)!r}, 'w').write(' '.join(sys.modules)))\n"
    )
    unit = launch(name, idle=0.3, preload=shim, start=False)
    client = launch.client(unit, endpoints(launch, name)[0])
    client.send("org.varlink.service.GetInfo")
    unit.start()
    assert client.receive().error is None
    assert unit.wait() == 0
    assert not set(out.read_text().split()) & FORBIDDEN
