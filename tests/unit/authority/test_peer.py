# SPDX-License-Identifier: Apache-2.0
"""Peer credentials, checked against what the kernel says of real processes."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from syntrop.common import peer


@contextmanager
def connected_child(path: Path, groups: list[int] | None = None) -> Iterator[tuple[socket.socket, int]]:
    """The accepted socket and process number of a child that connected, with other groups if asked."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        os.chmod(path, 0o666)
        child = os.fork()
        if child == 0:
            if groups is not None:
                os.setgroups(groups)
                os.setgid(20001)
                os.setuid(20000)
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(path))
            signal.pause()
        listener.settimeout(60)
        connection, _ = listener.accept()
        try:
            yield connection, child
        finally:
            connection.close()
            end(child)


def end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A socket path that any user reaches; pytest's own folders are for their owner alone."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder) / "s"


def test_of_a_socket_pair_is_ourselves() -> None:
    left, right = socket.socketpair()
    with left, right:
        who = peer.of(left)
        assert (who.uid, who.gid, who.pid) == (os.getuid(), os.getgid(), os.getpid())
        assert who.known
        assert who.groups == {os.getgid(), *os.getgroups()}
        who.close()


def test_a_tcp_peer_is_unknown() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        who = peer.of(client)
        assert not who.known
        assert who.groups == frozenset()
        assert who.pidfd is None
        assert who.identity() is None


@pytest.mark.root
def test_supplementary_groups_count(open_path: Path) -> None:
    with connected_child(open_path, groups=[30000, 30001]) as (sock, child):
        who = peer.of(sock)
        assert (who.uid, who.gid, who.pid) == (20000, 20001, child)
        assert who.groups == {20001, 30000, 30001}
        who.close()


@pytest.mark.root
def test_more_groups_than_python_fetches(open_path: Path) -> None:
    many = list(range(40000, 41000))
    with connected_child(open_path, groups=many) as (sock, _):
        who = peer.of(sock)
        assert who.groups == {20001, *many}
        who.close()


def test_pidfd_is_the_peers_and_is_closed(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with connected_child(tmp_path / "s") as (sock, child):
        who = peer.of(sock)
        pidfd = who.pidfd
        assert pidfd is not None
        assert who.pidfd == pidfd
        assert not os.get_inheritable(pidfd)
        assert f"Pid:\t{child}\n" in Path(f"/proc/self/fdinfo/{pidfd}").read_text()
        assert not peer.exited(pidfd)
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        assert peer.exited(pidfd)
        assert who.identity() is None
        who.close()
        who.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_identity_tells_processes_apart(tmp_path: Path) -> None:
    with connected_child(tmp_path / "s") as (sock, child):
        who = peer.of(sock)
        identity = who.identity()
        assert identity is not None
        assert identity[0] == child
        assert identity[1] == peer.start_time(child)
        assert identity[2] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert who.identity() == identity
        who.close()


def test_a_peer_that_is_gone_has_no_identity(tmp_path: Path) -> None:
    with connected_child(tmp_path / "s") as (sock, child):
        who = peer.of(sock)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert who.identity() is None
        assert who.uid == os.getuid()
        who.close()


def test_start_time_survives_hostile_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(str(n) for n in range(4, 53))
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) 1 2 3) S {fields}\n")
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path))
    assert peer.start_time(7) == 22
    assert peer.start_time(8) is None
