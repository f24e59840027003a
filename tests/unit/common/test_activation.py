# SPDX-License-Identifier: Apache-2.0
"""Passed sockets: adopted by name and address, refused when they are not what they should be."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from syntrop.common import activation

SRC = str(Path(activation.__file__).parents[2])


def adopted(tmp_path: Path, script: str, sockets: list[socket.socket], **environment: str) -> str:
    """Run `script` with the sockets as descriptors 3, 4, … the way a manager would; its standard output."""
    prelude = f"""
        import os, sys
        sys.path.insert(0, {SRC!r})
        os.environ["LISTEN_PID"] = os.environ.get("LISTEN_PID") or str(os.getpid())
        from syntrop.common import activation
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(script)
    fds = [sock.fileno() for sock in sockets]

    def place() -> None:
        high = [os.dup(fd) for fd in fds]  # out of the way of each other
        for index, fd in enumerate(high):
            os.dup2(fd, activation.FIRST + index)

    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"SYNTROP_RUN_ROOT": str(tmp_path), "LISTEN_FDS": str(len(fds)), **environment},
        close_fds=False,
        preexec_fn=place,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return result.stdout + result.stderr


def listening(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


def test_endpoints_are_told_apart_by_address_whatever_the_order(tmp_path: Path) -> None:
    one = listening(tmp_path / "syntrop" / "io.syntrop.Router1")
    two = socket.create_server(("127.0.0.1", 0))
    three = listening(tmp_path / "syntrop" / "router.sock")
    script = """
        got = activation.adopt()
        for endpoint in ("tcp", "router.sock", "io.syntrop.Router1"):
            print(endpoint, [l.socket.fileno() for l in activation.claim(got, endpoint, "routerd.socket")])
        print(os.environ.get("LISTEN_FDS"), os.environ.get("LISTEN_PID"), os.environ.get("LISTEN_FDNAMES"))
        print([os.get_inheritable(l.socket.fileno()) for l in got])
    """
    names = {"LISTEN_FDNAMES": "routerd.socket:routerd.socket:routerd.socket"}
    assert adopted(tmp_path, script, [one, two, three], **names).splitlines() == [
        "tcp [4]",
        "router.sock [5]",
        "io.syntrop.Router1 [3]",
        "None None None",
        "[False, False, False]",
    ]
    assert adopted(tmp_path, script, [three, one, two]).splitlines()[:3] == [
        "tcp [5]",
        "router.sock [3]",
        "io.syntrop.Router1 [4]",
    ]


def test_a_netlink_socket_is_known_by_its_protocol(tmp_path: Path) -> None:
    """It listens for nobody: a daemon asks the kernel by it."""
    script = """
        got = activation.adopt()
        for endpoint in ("netlink:4", "netlink:0", "router.sock"):
            claimed = activation.claim(got, endpoint, "toold-diag.socket")
            print(endpoint, [(one.socket.fileno(), one.unit) for one in claimed])
    """
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag,
        listening(tmp_path / "syntrop" / "router.sock") as router,
    ):
        names = {"LISTEN_FDNAMES": "toold-diag.socket:toold-diag.socket"}
        assert adopted(tmp_path, script, [diag, router], **names).splitlines() == [
            "netlink:4 [(3, 'toold-diag.socket')]",
            "netlink:0 []",
            "router.sock [(4, 'toold-diag.socket')]",
        ]
    script = 'activation.claim(activation.adopt(), "netlink:4", "toold-diag.socket")'
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag:
        assert "ActivationError" in adopted(tmp_path, script, [diag], LISTEN_FDNAMES="other.socket")


def test_a_right_address_from_a_wrong_unit_is_refused(tmp_path: Path) -> None:
    sock = listening(tmp_path / "syntrop" / "sentry.sock")
    script = """
        try:
            activation.claim(activation.adopt(), "sentry.sock", "inferenced-enclave.socket")
        except activation.ActivationError as error:
            print("refused:", error)
    """
    output = adopted(tmp_path, script, [sock], LISTEN_FDNAMES="inferenced.socket")
    assert output.startswith("refused:") and "inferenced.socket" in output


def test_variables_for_another_process_are_not_ours(tmp_path: Path) -> None:
    sock = listening(tmp_path / "syntrop" / "router.sock")
    assert adopted(tmp_path, "print(activation.adopt())", [sock], LISTEN_PID="1").strip() == "None"


def test_what_is_no_listening_stream_socket_is_refused(tmp_path: Path) -> None:
    script = """
        try:
            activation.adopt()
        except activation.ActivationError as error:
            print("refused:", error)
    """
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    assert "refused: descriptor 3" in adopted(tmp_path, script, [datagram])
    connected, _other = socket.socketpair()
    assert "refused: descriptor 3" in adopted(tmp_path, script, [connected])
    assert "refused: descriptor" in adopted(tmp_path, script, [], LISTEN_FDS="400")
    assert "is not a number" in adopted(tmp_path, script, [], LISTEN_FDS="-1")


def test_bind_takes_over_a_dead_socket_and_not_a_living_one(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "x.sock")
    first = activation.bind(path)
    assert os.stat(path).st_mode & 0o777 == 0o666
    with pytest.raises(OSError, match="in use"):
        activation.bind(path)
    first.socket.close()
    second = activation.bind(path)
    second.socket.close()


def test_bind_understands_hosts_and_refuses_the_rest() -> None:
    for address, endpoint in (("127.0.0.1:0", "tcp"), ("[::1]:0", "tcp")):
        listener = activation.bind(address)
        assert listener.endpoint == endpoint
        listener.socket.close()
    for bad in ("nonsense", "127.0.0.1:", "127.0.0.1:x", "relative/path"):
        with pytest.raises(activation.ActivationError):
            activation.bind(bad)


def test_bind_gives_the_mode_that_the_endpoint_asks_for(tmp_path: Path) -> None:
    listener = activation.bind(str(tmp_path / "gateway.sock"), 0o660)
    assert os.stat(tmp_path / "gateway.sock").st_mode & 0o777 == 0o660
    listener.socket.close()
