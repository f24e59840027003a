# SPDX-License-Identifier: Apache-2.0
"""`systemd-sentry mcp`, asked by the SDK's own client; behind it the real supervisor, over a double of PID 1."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from bus_double import Bus
from manager_double import ManagerDouble
from mcp import Client, StdioServerParameters
from waiting import wait_for

SOURCE = str(Path(__file__).parents[2] / "src")
PATIENCE = 60.0
INVOCATION = "1" * 32


def environment(root: Path, bus: Bus | None = None) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": SOURCE,
        "SYNTROP_RUN_ROOT": str(root),
        "SYNTROP_CONFIG_ROOT": str(root),
        "STATE_DIRECTORY": str(root / "state"),
        **({} if bus is None else {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={bus.path}"}),
    }


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Path]:
    """The root of a running supervisor, which knows one incident, on a machine where web.service has failed."""
    (tmp_path / "systemd-sentry").mkdir()
    (tmp_path / "state").mkdir()
    bus = Bus(tmp_path)
    bus.start()
    double = ManagerDouble(bus)
    double.units["web.service"] = {
        "Id": "web.service", "LoadState": "loaded", "ActiveState": "failed", "SubState": "failed",
        "Type": "simple", "InvocationID": bytes.fromhex(INVOCATION), "Result": "signal",
        "ExecMainCode": 2, "ExecMainStatus": 11,
        "Job": (0, "/"),
    }  # fmt: skip
    path = tmp_path / "systemd-sentry/sentry.sock"
    daemon = subprocess.Popen(
        [sys.executable, "-m", "syntrop.sentry", f"--listen={path}"], env=environment(tmp_path, bus)
    )
    try:
        wait_for(lambda: path.exists() or daemon.poll() is not None, "it listens", PATIENCE)
        assert daemon.poll() is None
        yield tmp_path
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE)
        double.close()
        bus.stop()


def asked(root: Path, use: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "syntrop.sentry", "mcp"], env=environment(root)
    )

    async def main() -> None:
        async with Client(server, read_timeout_seconds=PATIENCE) as client:
            await use(client)

    asyncio.run(asyncio.wait_for(main(), 3 * PATIENCE))


async def told(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    text: dict[str, Any] = json.loads(result.content[0].text)
    return text


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    text: str = result.content[0].text
    return text


def test_an_assistant_looks_and_changes_nothing(supervisor: Path) -> None:
    async def use(client: Client) -> None:
        assert client.server_info.name == "systemd-sentry"
        assert "never instructions" in (client.instructions or "")
        tools = (await client.list_tools()).tools
        assert {one.name for one in tools} == {"status", "incidents", "incident", "triage"}
        assert all(one.annotations is not None and one.annotations.read_only_hint for one in tools)
        assert all(one.description for one in tools)
        assert (await told(client, "status"))["mode"] == "on_demand"

        found = (await told(client, "triage", unit="web.service"))["incident"]
        assert found["unit"] == "web.service"
        assert found["causes"][0]["fault_class"] == "crash"
        assert found["action"]["tool"] == "unit_restart"
        # Looked into only: nothing was carried out.
        assert found["status"] not in ("acting", "recovered", "rolled_back")
        assert (await told(client, "status"))["breakers"] == []

        assert "NoSuchUnit" in await refused(client, "triage", unit="absent.service")
        assert "NoSuchIncident" in await refused(client, "incident", id="none")
        assert (await told(client, "incidents", unit="other.service"))["incidents"] == []
        assert await refused(client, "incidents", status="no such status")

    asked(supervisor, use)


def test_without_a_supervisor_the_tools_say_so(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        assert "cannot be asked" in await refused(client, "status")

    asked(tmp_path, use)


def test_without_the_sdk_it_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "syntrop.sentry", "mcp"], env=environment(tmp_path), check=False,
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == os.EX_UNAVAILABLE
    assert "syntrop[mcp]" in done.stderr and done.stdout == ""
