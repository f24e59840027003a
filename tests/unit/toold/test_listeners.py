# SPDX-License-Identifier: Apache-2.0
"""What listens, asked of the kernel: against `ss`, several askers at once, leftovers, and nonsense."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.toold import listeners, sockdiag
from syntrop.toold.listeners import Listeners, table
from syntrop.toold.sockdiag import IPV4, IPV6, TCP, UDP, DiagError, Refused, Socket

PATIENCE = 60.0


@pytest.fixture
def netlink() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, sockdiag.PROTOCOL) as made:
        made.bind((0, 0))
        yield made


@pytest.fixture
def opened() -> Iterator[dict[str, str]]:
    """Sockets of every kind, by protocol and address, and the words that `ss` has for each."""
    made: list[socket.socket] = []

    def new(family: int, kind: int, address: str, *options: tuple[int, int, bytes | int]) -> int:
        made.append(socket.socket(family, kind))
        for level, name, value in options:
            made[-1].setsockopt(level, name, value)
        made[-1].bind((address, 0))
        if kind == socket.SOCK_STREAM:
            made[-1].listen(7)
        return int(made[-1].getsockname()[1])

    stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
    both = (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    only = (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    found = {}
    for family, kind, address, options, shown in (
        (socket.AF_INET, stream, "127.0.0.1", (), "tcp 127.0.0.1"),
        (socket.AF_INET, stream, "0.0.0.0", (), "tcp 0.0.0.0"),
        (socket.AF_INET6, stream, "::1", (), "tcp [::1]"),
        (socket.AF_INET6, stream, "::", (both,), "tcp *"),
        (socket.AF_INET6, stream, "::", (only,), "tcp [::]"),
        (socket.AF_INET, datagram, "127.0.0.1", (), "udp 127.0.0.1"),
        (socket.AF_INET6, datagram, "::", (both,), "udp *"),
        (socket.AF_INET6, datagram, "::", (only,), "udp [::]"),
        (
            socket.AF_INET,
            stream,
            "127.0.0.1",
            ((socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo"),),
            "tcp 127.0.0.1%lo",
        ),
    ):
        found[f"{shown}:{new(family, kind, address, *options)}"] = ""
    # One that waits to be accepted, and listens to nobody itself.
    made.append(socket.create_connection(made[0].getsockname()))
    assert select.select([made[0]], [], [], PATIENCE)[0]
    command = ["ss", "--no-header", "--listening", "--numeric", "--tcp", "--udp"]
    said = lines(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    found = {one: said[one] for one in found}
    yield found
    for one in made:
        one.close()


def lines(text: str) -> dict[str, str]:
    """By protocol and address."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        found[f"{words[0]} {words[4]}"] = " ".join(words[:6])
    return found


def test_it_is_what_ss_says(netlink: socket.socket, opened: dict[str, str]) -> None:
    asked = Listeners(netlink)
    text, whole = asked.show("", PATIENCE)
    assert whole
    assert {one: lines(text)[one] for one in opened} == opened
    assert next(iter(opened.values())).startswith("tcp LISTEN 1 7 ")
    tcp, _ = asked.show("tcp", PATIENCE)
    assert {line.split()[0] for line in tcp.splitlines()} == {"LISTEN"}
    udp, _ = asked.show("udp", PATIENCE)
    assert {line.split()[0] for line in udp.splitlines()} == {"UNCONN"}


def test_several_ask_at_once(netlink: socket.socket, opened: dict[str, str]) -> None:
    asked = Listeners(netlink)
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(asked.show("", PATIENCE)[0])) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(texts) == len(threads)
    for text in texts:
        assert {one: lines(text)[one] for one in opened} == opened


def test_what_another_left_unread_is_passed_over(netlink: socket.socket, opened: dict[str, str]) -> None:
    """An asker that was killed amid its list, or a stray message of root's."""
    netlink.send(sockdiag.request(TCP, IPV4, 1))
    netlink.send(b"x" * 16)
    text, _ = Listeners(netlink).show("", PATIENCE)
    assert set(opened) <= lines(text).keys()


def test_time_is_kept(netlink: socket.socket) -> None:
    with pytest.raises(TimeoutError):
        Listeners(netlink).show("tcp", 0.0)
    asked = Listeners(netlink)
    asked._guard.acquire()
    with pytest.raises(TimeoutError):
        asked.show("tcp", 0.01)
    asked._guard.release()
    assert asked.show("tcp", PATIENCE)[1]


def test_a_socket_is_told_with_the_control_group_of_who_made_it(tmp_path: Path) -> None:
    """By a tree of folders, whose numbers are what the kernel tells of sockets."""
    deep = tmp_path / "system.slice" / "a.service"
    deep.mkdir(parents=True)
    (tmp_path / "user.slice").mkdir()
    here = time.monotonic() + PATIENCE
    wanted = {os.stat(one).st_ino for one in (tmp_path, deep)} | {1 << 60}
    paths, whole = listeners._tree(str(tmp_path), wanted, here)
    assert sorted(paths.values()) == ["/", "/system.slice/a.service"]
    assert whole
    assert listeners._tree(str(tmp_path), wanted, time.monotonic() - 1) == ({os.stat(tmp_path).st_ino: "/"}, False)


def test_groups_that_are_gone_and_machines_without_any() -> None:
    one = Socket(TCP, IPV4, 10, "127.0.0.1", 80)
    one.cgroup = 77
    assert table([one], {}, {77: "/system.slice/a.service"}, kinds=True)[0].endswith(
        " cgroup:/system.slice/a.service\n"
    )
    assert table([one], {}, {77: ""}, kinds=True)[0].endswith(" cgroup:unreachable:77\n")
    assert table([one], {}, None, kinds=False)[0] == "LISTEN 0 0 127.0.0.1:80 0.0.0.0:*\n"
    assert table([], {}, None, kinds=True) == ("", True)
    one.interface = 9
    assert "127.0.0.1%if9:80" in table([one], {}, None, kinds=True)[0]
    assert "127.0.0.1%eth0:80" in table([one], {9: "eth0"}, None, kinds=True)[0]


def test_what_is_shown_has_an_end() -> None:
    many = [Socket(UDP, IPV6, 7, "2001:db8::1", port) for port in range(1, 20000)]
    text, whole = table(many, {}, None, kinds=True)
    assert not whole
    assert listeners.TEXT_MAX - 100 < len(text) <= listeners.TEXT_MAX
    assert text.endswith("\n")


def test_interfaces_have_the_names_of_the_machines_network() -> None:
    igmp = [
        "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter",
        "1\tlo        :     1      V3",
        "\t\t\t\t",
    ]
    assert dict(listeners.interfaces("igmp", igmp)) == {1: "lo"}
    inet6 = ["fe80000000000000000000fffe000001 0b 40 20 80 veth-long-name0", "torn"]
    assert dict(listeners.interfaces("if_inet6", inet6)) == {11: "veth-long-name0"}


def message(kind: int, body: bytes, sequence: int = 5) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, sequence, 0) + body + b"\0" * (-len(body) % 4)


def test_refusals_have_their_number() -> None:
    for kind in (2, 3):
        with pytest.raises(Refused) as refused:
            list(sockdiag.replies(message(kind, struct.pack("=i", -2)), TCP, 5))
        assert refused.value.number == 2
    assert list(sockdiag.replies(message(3, struct.pack("=i", 0)), TCP, 5)) == [None]
    assert list(sockdiag.replies(message(2, struct.pack("=i", -2), sequence=4), TCP, 5)) == []


SOUND = message(
    20, struct.pack("=BB2x2s2x16s16xI12xII8x", 2, 10, b"\0\x50", b"\x7f\0\0\1" + b"\0" * 12, 0, 1, 128)
)


def test_a_sound_one_is_read() -> None:
    [one, end] = sockdiag.replies(SOUND + message(3, struct.pack("=i", 0)), TCP, 5)
    assert one is not None
    assert (one.address, one.port, one.waiting, one.room, one.cgroup) == ("127.0.0.1", 80, 1, 128, 0)
    assert end is None


@given(st.binary(max_size=400), st.integers(0, len(SOUND)), st.integers(0, 400))
def test_nonsense_is_an_error_of_ours(noise: bytes, cut: int, at: int) -> None:
    spoilt = bytearray(SOUND + SOUND)
    spoilt[at : at + len(noise)] = noise
    for data in (noise, SOUND[:cut], bytes(spoilt), message(20, noise)):
        try:
            list(sockdiag.replies(data, TCP, 5))
        except DiagError:
            pass
