# SPDX-License-Identifier: Apache-2.0
"""The transport against foreign peers: the `varlink` package as client and as server, and asyncvarlink."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from syntrop.common import loop
from syntrop.common.varlink import client

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src")}


def wait_for(path: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 30
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(path) == 0:
                return
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="syn-") as path:  # short: a socket's path may have 107 bytes
        yield path


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    process.terminate()
    output, _ = process.communicate(timeout=60)
    return output


@pytest.fixture
def service(folder: str) -> Iterator[str]:
    """Path of the socket of our certification service."""
    path = os.path.join(folder, "sock")
    process = start(str(HERE / "varlink_daemon.py"), f"--listen={path}")
    wait_for(path, process)
    yield path
    output = end(process)
    assert process.returncode == 0, output


def test_the_package_s_client_certifies_our_service(service: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "varlink.tests.test_certification", "--client", f"--varlink=unix:{service}"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Certification passed" in done.stdout
    assert "End: {'all_ok': True}" in done.stdout


def test_the_package_s_client_introspects_our_service(service: str) -> None:
    import varlink

    with varlink.Client(f"unix:{service}") as peer:
        assert set(peer.get_interfaces()) == {
            "org.varlink.service",
            "org.varlink.certification",
            "org.example.ping",
            "org.example.files",
        }
        with peer.open("org.example.ping") as ping:
            assert ping.Ping("é\U0001f600")["text"] == "é\U0001f600"
        with peer.open("org.varlink.certification") as tests, pytest.raises(varlink.VarlinkError) as caught:
            tests.Test01("no such client")
        assert caught.value.error() == "org.varlink.certification.ClientIdError"


async def certify(address: str) -> bool:
    """Our client's way through the certification, whoever serves it."""
    name = "org.varlink.certification."
    peer = await client.connect(address)
    with await peer.call(name + "Start") as reply:
        client_id = reply.parameters["client_id"]
    previous: dict[str, object] = {}
    for number in range(1, 10):
        with await peer.call(f"{name}Test{number:02}", {"client_id": client_id, **previous}) as reply:
            previous = {key: value for key, value in reply.parameters.items() if key != "client_id"}
    mytype = {key: value for key, value in previous["mytype"].items() if value is not None}  # type: ignore[attr-defined]
    stream = peer.stream(name + "Test10", {"client_id": client_id, "mytype": mytype})
    texts = [one.parameters["string"] async for one in stream]
    await peer.oneway(name + "Test11", {"client_id": client_id, "last_more_replies": texts})
    with await peer.call(name + "End", {"client_id": client_id}) as reply:
        passed: bool = reply.parameters["all_ok"]
    peer.close()
    return passed


def test_our_client_is_certified_by_our_service(service: str) -> None:
    assert loop.run(certify(service))


def test_our_client_is_certified_by_the_package_s_service(folder: str) -> None:
    path = os.path.join(folder, "sock")
    process = start("-m", "varlink.tests.test_certification", f"--varlink=unix:{path}")
    try:
        wait_for(path, process)
        assert loop.run(certify(path))
    finally:
        process.kill()
        process.communicate()


def test_asyncvarlink_s_client_passes_descriptors_to_and_from_our_service(service: str) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "asyncvarlink_peer.py"), "client", service],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_our_client_passes_descriptors_to_and_from_asyncvarlink_s_service(folder: str) -> None:
    path = os.path.join(folder, "sock")
    process = subprocess.Popen(
        [sys.executable, str(HERE / "asyncvarlink_peer.py"), "server", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    async def main() -> None:
        peer = await client.connect(path)
        reading, writing = os.pipe()
        os.write(writing, b"from the client")
        os.close(writing)
        with await peer.call("org.example.files.Read", {"fd": 0}, fds=[reading]) as reply:
            assert reply.parameters == {"text": "from the client"}
        os.close(reading)
        with await peer.call("org.example.files.Open", {"text": "from the service"}) as reply:
            handle = reply.take_fd(reply.parameters["fd"])
        assert os.read(handle, 99) == b"from the service"
        os.close(handle)
        stream = peer.stream("org.example.files.Count", {"upto": 3})
        assert [reply.parameters["number"] async for reply in stream] == [0, 1, 2, 3]
        peer.close()

    try:
        wait_for(path, process)
        loop.run(main())
    finally:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
