# SPDX-License-Identifier: Apache-2.0
"""The lookout as a process, as its unit starts it, and who asks it: real files in the place of devices."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common import loop, paths
from syntrop.inferenced import fdinfo, lookout
from syntrop.inferenced.sight import ENDPOINT, Sight

WORDS = st.text(max_size=8)
SIZES = st.none() | st.integers(0, 1 << 62)
STATS = st.builds(fdinfo.Stats, WORDS, st.none() | WORDS, SIZES, SIZES, SIZES)
FILES = st.builds(fdinfo.File, WORDS, st.integers(1, 1 << 22), st.integers(0, 1 << 60), WORDS, st.none() | STATS)
LOOKS = st.builds(fdinfo.Look, st.lists(FILES), st.integers(0, 1 << 20), st.booleans())
# As systemd passes a socket: as descriptor 3, to the process that LISTEN_PID names.
START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
from syntrop.inferenced.lookout import main
main()
"""


@given(LOOKS)
def test_what_is_told_is_understood(look: fdinfo.Look) -> None:
    assert lookout.decode(lookout.encode(look)) == look


@given(st.binary() | st.from_regex(rb"\[[0-9], *(true|null), *\[(\[.*\])?\]\]", fullmatch=True))
def test_what_is_no_answer_is_refused(line: bytes) -> None:
    try:
        lookout.decode(line)
    except ValueError:
        pass


def test_what_is_too_much_to_tell_is_cut() -> None:
    file = fdinfo.File("dri/renderD128", 1, 2, "3", None)
    told = lookout.decode(lookout.encode(fdinfo.Look([file] * (lookout.FILES_MAX + 1))))
    assert (len(told.files), told.cut) == (lookout.FILES_MAX, True)


class Lookout:
    """One process, which is given a connection or the listening socket."""

    def __init__(self, given: socket.socket) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, str(given.fileno())], pass_fds=[given.fileno()]
        )
        given.close()

    def ended(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setenv("SYNTROP_RUN_ROOT", str(tmp_path))
    os.makedirs(os.path.dirname(paths.endpoint(ENDPOINT)))
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(paths.endpoint(ENDPOINT))
        one.listen()
        yield one


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """A device that this process has open."""
    path = tmp_path / "dev/dri/renderD777"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    with path.open("rb"):
        yield path


def seen(look: fdinfo.Look) -> list[tuple[str, int]]:
    return [(file.node, file.pid) for file in look.files if file.node == "dri/renderD777"]


def test_the_lookout_is_asked_and_lives_by_the_connection(listener: socket.socket, node: Path) -> None:
    async def main() -> None:
        sight = Sight()
        sight.keep()
        looking = loop.spawn(sight.look())
        await loop.readable(listener.fileno())
        one = Lookout(listener.accept()[0])
        assert seen(await looking) == [("dri/renderD777", os.getpid())]
        for pids, count in (([os.getpid(), 1], 1), ([1], 0), ([], 0), (range(1, 30_000), None)):
            found = seen(await sight.look(pids))
            assert count is None or len(found) == count
        assert one.process.poll() is None
        sight.rest()
        assert one.ended() == 0

    loop.run(main())


def test_without_reason_to_keep_it_each_look_has_its_own(listener: socket.socket, node: Path) -> None:
    one = Lookout(listener)  # under a manager that passes the listening socket

    async def main() -> None:
        sight = Sight()
        for _ in range(3):
            assert seen(await sight.look()) == [("dri/renderD777", os.getpid())]
            assert sight._socket is None

    loop.run(main())
    assert one.ended() == 0


@pytest.mark.parametrize("answer", [None, b"", b"nonsense\n", b"[1]\n"])
def test_without_an_answer_we_look_ourselves(listener: socket.socket, node: Path, answer: bytes | None) -> None:
    async def main() -> None:
        sight = Sight()
        sight.keep()
        if answer is None:
            os.unlink(paths.endpoint(ENDPOINT))
        looking = loop.spawn(sight.look())
        if answer is not None:
            await loop.readable(listener.fileno())
            with listener.accept()[0] as other:
                other.recv(100)
                other.sendall(answer)
        assert seen(await looking) == [("dri/renderD777", os.getpid())]
        assert sight._socket is None

    loop.run(main())


@pytest.mark.parametrize("request_", [b"x\n", b"1 2 three\n", b"\0" * 70_000])
def test_what_is_no_request_ends_it(listener: socket.socket, request_: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(paths.endpoint(ENDPOINT))
        one = Lookout(listener.accept()[0])
        try:
            client.sendall(request_)
            assert client.recv(1) == b""
        except (BrokenPipeError, ConnectionResetError):
            pass  # what we sent was not read to its end
    assert one.ended() == 0


def test_by_hand_it_says_how_it_is_started() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "syntrop.inferenced.lookout"], capture_output=True, text=True, check=False
    )
    assert "started by its socket" in done.stderr and done.returncode == 1
