# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import array
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common import journal, memfd


def decode(datagram: bytes) -> dict[str, bytes]:
    """An independent reading of journald's native protocol."""
    fields: dict[str, bytes] = {}
    while datagram:
        line, _, rest = datagram.partition(b"\n")
        key, equals, value = line.partition(b"=")
        if equals:
            fields[key.decode()] = value
            datagram = rest
        else:
            (size,) = struct.unpack_from("<Q", rest)
            fields[key.decode()] = rest[8 : 8 + size]
            assert rest[8 + size : 9 + size] == b"\n"
            datagram = rest[9 + size :]
    return fields


@pytest.fixture
def journald(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setenv("SYNTROP_RUN_ROOT", str(tmp_path))
    folder = tmp_path / "systemd" / "journal"
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(folder / "socket"))
        server.settimeout(60)
        yield server


@contextmanager
def stderr_as_pipe() -> Iterator[int]:
    """Descriptor 2 is a pipe meanwhile; gives its reading end, non-blocking.

    No fixture: pytest's capturing sets descriptor 2 anew between set-up and call.
    """
    saved = os.dup(2)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.dup2(writing, 2)
    os.close(writing)
    os.set_blocking(reading, False)
    try:
        yield reading
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(reading)


def test_native_fields(journald: socket.socket) -> None:
    sink = journal.Journal(native=True, identifier="modeld")
    sink.log(journal.NOTICE, "hello", journal.INTERNAL_ERROR, {"model": "a", "SIZE": 7, "NOTHING": None})
    assert decode(journald.recv(65536)) == {
        "PRIORITY": b"5",
        "SYSLOG_IDENTIFIER": b"modeld",
        "MESSAGE": b"hello",
        "MESSAGE_ID": journal.INTERNAL_ERROR.encode(),
        "MODEL": b"a",
        "SIZE": b"7",
    }


def test_native_multi_line_messages_stay_one_entry(journald: socket.socket) -> None:
    journal.Journal(native=True).log(journal.ERR, "one\ntwo=2\n", None, {"X": b"\x00\n\xff"})
    fields = decode(journald.recv(65536))
    assert fields["MESSAGE"] == b"one\ntwo=2\n"
    assert fields["X"] == b"\x00\n\xff"


def test_what_is_too_large_for_a_datagram_goes_as_a_sealed_file(journald: socket.socket) -> None:
    text = "x" * 3_000_000
    journal.Journal(native=True).log(journal.ERR, text, None, {})
    data, ancillary, _, _ = journald.recvmsg(100, socket.CMSG_SPACE(4))
    assert data == b""
    (handle,) = array.array("i", ancillary[0][2])
    try:
        size = memfd.verify(handle)
        assert decode(os.pread(handle, size, 0))["MESSAGE"] == text.encode()
    finally:
        os.close(handle)


def test_a_missing_journal_falls_back_to_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTROP_RUN_ROOT", str(tmp_path))
    with stderr_as_pipe() as reading:
        journal.Journal(native=True).log(journal.ERR, "lost?", None, {})
        assert os.read(reading, 100) == b"<3>lost?\n"


def test_a_full_journal_never_blocks(journald: socket.socket) -> None:
    sink = journal.Journal(native=True)
    with stderr_as_pipe():
        started = time.monotonic()
        for number in range(5000):
            sink.log(journal.INFO, f"{number} {'y' * 200}", None, {})
        assert time.monotonic() - started < 5
        journald.setblocking(False)
        with pytest.raises(BlockingIOError):
            while journald.recv(65536):
                pass
        sink.log(journal.INFO, "after", None, {})
    texts = [decode(journald.recv(65536))["MESSAGE"] for _ in range(2)]
    assert b"log messages were dropped" in texts[0]
    assert texts[1] == b"after"


def test_a_full_stderr_never_blocks_and_tells_what_it_lost() -> None:
    sink = journal.Journal(native=False)
    with stderr_as_pipe() as reading:
        for _ in range(1000):
            sink.log(journal.INFO, "z" * 1000, None, {})
        with pytest.raises(BlockingIOError):
            while os.read(reading, 65536):
                pass
        sink.log(journal.INFO, "after", None, {})
        lines = os.read(reading, 65536).decode().splitlines()
    assert "log messages were dropped" in lines[-2]
    assert lines[-1] == "<6>after"


def test_a_closed_stderr_does_not_raise() -> None:
    code = "import os; os.close(2); from syntrop.common import journal; journal.error('x'); journal.error('y')"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": "src"})


def test_levels_drop_what_is_less_urgent() -> None:
    sink = journal.Journal(native=False, level=journal.WARNING)
    with stderr_as_pipe() as reading:
        sink.log(journal.NOTICE, "no", None, {})
        sink.log(journal.WARNING, "yes", None, {})
        assert os.read(reading, 100) == b"<4>yes\n"


def test_stderr_lines_each_carry_the_prefix() -> None:
    assert journal.encode_lines(3, "a\nb\r\nc") == b"<3>a\n<3>b\n<3>c\n"
    assert journal.encode_lines(6, "") == b"<6>\n"
    assert journal.encode_lines(6, "\udcff\x00") == b"<6>\\udcff\x00\n"


def test_the_journal_is_recognised_by_device_and_inode(monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.fstat(2)
    for text, native in (
        (f"{status.st_dev}:{status.st_ino}", True),
        (f"{status.st_dev}:{status.st_ino + 1}", False),
        ("nonsense", False),
        ("", False),
    ):
        monkeypatch.setenv("JOURNAL_STREAM", text)
        assert journal.Journal.from_environment().native is native


@pytest.mark.parametrize(
    ("text", "level"), [("debug", 7), ("ERR", 3), ("error", 3), ("0", 0), ("7", 7), ("console:warning", 4)]
)
def test_levels_by_name_or_number(text: str, level: int) -> None:
    assert journal.parse_level(text) == level


@pytest.mark.parametrize("text", ["", "8", "-1", "loud", "²", "9999999999"])
def test_a_level_that_is_none_raises(text: str) -> None:
    with pytest.raises(ValueError, match="log level"):
        journal.parse_level(text)


def test_an_unreadable_level_leaves_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMD_LOG_LEVEL", "loud")
    assert journal.Journal.from_environment().level == journal.INFO


def test_exception_tells_the_traceback_and_the_place(
    journald: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_journal", journal.Journal(native=True))
    try:
        int("x")
    except ValueError as error:
        journal.exception("cannot count", error, MODEL="m")
    fields = decode(journald.recv(65536))
    assert fields["MESSAGE"].startswith(b"cannot count\nTraceback")
    assert fields["CODE_FILE"] == __file__.encode()
    assert fields["EXCEPTION"] == b"ValueError"
    assert (fields["MODEL"], fields["PRIORITY"]) == (b"m", b"3")


FIELD = st.from_regex(r"[A-Z][A-Z0-9_]{0,63}", fullmatch=True)


@given(st.dictionaries(FIELD, st.binary(max_size=200), max_size=6))
def test_fields_survive_the_wire(fields: dict[str, bytes]) -> None:
    assert decode(journal.encode_fields(dict(fields))) == fields


@given(st.dictionaries(st.text(max_size=70), st.text(max_size=20), max_size=6))
def test_names_that_journald_would_drop_are_left_out(fields: dict[str, str]) -> None:
    for name in decode(journal.encode_fields(dict(fields))):
        assert name.isascii() and not name.startswith("_") and 0 < len(name) <= 64
