# SPDX-License-Identifier: Apache-2.0
"""The small parts under the activator: back-off, notifications, folders, addresses, holders, output."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.ctl import find, holder, listen, notify
from syntrop.ctl.backoff import CAP, STEADY, Backoff
from syntrop.ctl.folders import Busy, KeptFolders, RuntimeFolder
from syntrop.ctl.output import INFO, NOTICE, Log, Output


def test_failures_in_a_row_double_the_delay_up_to_the_cap():
    backoff = Backoff(1.0)
    assert [backoff.failed(0.1) for _ in range(7)] == [1, 2, 4, 8, 16, CAP, CAP]
    backoff.ended_well()
    assert backoff.failed(0.1) == 1
    assert backoff.failed(STEADY) == 1  # it ran long enough to count as a fresh failure
    assert Backoff(100.0).failed(0) == 100
    assert Backoff(0.0).failed(0) > 0


@given(st.lists(st.floats(0, 5), max_size=50), st.integers(1, 6), st.floats(0.1, 10))
def test_the_trigger_limit_holds_in_every_window(pauses: list[float], burst: int, interval: float):
    backoff = Backoff(1.0, interval=interval, burst=burst)
    now, starts = 0.0, []
    for pause in pauses:
        now += pause
        held = backoff.hold(now)
        assert 0 <= held <= interval
        now += held
        assert backoff.hold(now + 1e-9) < 1e-6
        backoff.started(now)
        starts.append(now)
    for first, later in zip(starts, starts[burst:], strict=False):
        assert later - first >= interval - 1e-6


def test_a_limit_of_nothing_is_none():
    backoff = Backoff(1.0, interval=0, burst=1)
    backoff.started(0)
    assert backoff.hold(0) == 0


def test_notifications_come_with_the_pid_that_the_kernel_vouches_for(tmp_path):
    manager = notify.NotifySocket(str(tmp_path / "n"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"READY=1\nSTATUS=a=b\nnonsense\n", manager.path)
        sender.sendto(b"X" * 5000, manager.path)  # larger than a message may be: not half believed
        before = len(os.listdir("/proc/self/fd"))
        read, write = os.pipe()
        sender.connect(manager.path)
        socket.send_fds(sender, [b"BARRIER=1"], [write])
        os.close(write)
        messages = list(manager.receive())
        assert os.read(read, 1) == b""  # the barrier's descriptor was closed: that is its answer
        os.close(read)
        assert len(os.listdir("/proc/self/fd")) == before
    assert messages == [(os.getpid(), {"READY": "1", "STATUS": "a=b"}), (os.getpid(), {"BARRIER": "1"})]
    assert list(manager.receive()) == []
    manager.close()
    assert not (tmp_path / "n").exists()
    assert notify.microseconds("1500000") == 1.5
    assert notify.microseconds("9" * 4000) is None
    assert notify.microseconds("-1") is None


@given(st.binary())
def test_any_notification_can_be_parsed(data: bytes):
    assert all("\n" not in value for value in notify.parse(data).values())


def test_the_runtime_folder_is_chosen_as_promised(tmp_path, monkeypatch):
    for name in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    temporary = RuntimeFolder()
    assert os.path.dirname(temporary.root) == str(tmp_path)
    temporary.remove()
    assert not os.path.exists(temporary.root)

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    user = RuntimeFolder()
    assert user.root == str(tmp_path / "syntrop")
    with pytest.raises(Busy, match="another activator"):
        RuntimeFolder()
    user.remove()

    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{tmp_path}/given:/other")
    (tmp_path / "given").mkdir()
    (tmp_path / "given/kept").touch()
    given_folder = RuntimeFolder()
    assert given_folder.path("/run/syntrop/x") == f"{tmp_path}/given/syntrop/x"
    assert given_folder.path("/runner/x") == "/runner/x"
    given_folder.make(f"{tmp_path}/given/a/b", 0o700)
    given_folder.remove()
    assert os.listdir(tmp_path / "given") == ["kept"]


def test_kept_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("SYNTROP_STATE_ROOT", str(tmp_path))
    assert KeptFolders().state == str(tmp_path)
    monkeypatch.delenv("SYNTROP_STATE_ROOT")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert KeptFolders().state == "/var/lib"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/invalid")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    kept = KeptFolders()
    assert (kept.state, kept.cache, kept.logs) == (
        "/home/me/.local/state",
        "/elsewhere",
        "/home/me/.local/state/log",
    )


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("80", ("::", 80)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
    ],
)
def test_addresses(address, expected):
    assert listen.split_address(address) == expected


@pytest.mark.parametrize("address", ["x", "127.0.0.1:", "127.0.0.1:99999", "host:http"])
def test_no_addresses(address):
    with pytest.raises(listen.BindError):
        listen.split_address(address)


def test_the_holder_of_a_port_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = holder.find(server.getsockname()[1])
        assert found is not None
        assert (found.pid, found.listening) == (os.getpid(), True)
        assert f"process {os.getpid()} (" in str(found)
        free = server.getsockname()[1]
    assert holder.find(free) is None


def test_listening_sockets_are_told_from_others(tmp_path):
    path = str(tmp_path / "with blank")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        assert path not in find.listening()
        server.listen()
        inode = os.fstat(server.fileno()).st_ino
        assert find.listening()[path] == inode
        # We hold it, but did not inherit it: nobody serves it for somebody else.
        assert find.servants({inode}) == []


def test_output_keeps_what_is_urgent(tmp_path, monkeypatch):
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    said: list[tuple[int, str, str]] = []

    class Recorder(Log):
        def line(self, priority: int, source: str, text: str) -> None:
            if priority <= self.level:
                said.append((priority, source, text))

    read, write = os.pipe()
    output = Output(Recorder(INFO), "x", read)
    os.write(write, b"<3>bad\n<7>chatter\nTraceback\n<6>fine\nhalf")
    assert output.read()
    os.write(write, b" a line")
    os.close(write)
    assert not output.read()
    os.close(read)
    assert said == [(3, "x", "bad"), (NOTICE, "x", "Traceback"), (INFO, "x", "fine"), (NOTICE, "x", "half a line")]


def test_proc_is_read_where_it_is_said_to_be(tmp_path, monkeypatch):
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:8000 0200007F:1234 01 00000000:00000000 00:00000000 00000000  1000        0 4242 1\n"
    )
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "7/fd/3").symlink_to("socket:[4242]")
    Path(tmp_path, "7/cmdline").write_bytes(b"/usr/bin/browser\0--tab\0")
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path))
    assert str(holder.find(32768)) == "process 7 (/usr/bin/browser --tab) uses it for a connection"
    (tmp_path / "7/fd/3").unlink()
    assert str(holder.find(32768)) == "a process of user 1000 that we may not look into uses it for a connection"
