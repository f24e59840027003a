# SPDX-License-Identifier: Apache-2.0
"""fd.sock: sealed memory from one process to others, and everything that is not that refused."""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import memfd

PATIENCE = 60.0
INFERENCE = "io.syntrop.Inference1."
PUBLISH, FETCH, RELEASE = (INFERENCE + name + "Descriptor" for name in ("Publish", "Fetch", "Release"))
TENSOR = 32 << 20

# Fetches, maps and reads the memory; says how much of it is its own by the kernel's count, and waits.
CONSUMER = """
import array, json, mmap, re, socket, sys
path, descriptor = sys.argv[1:]
sock = socket.socket(socket.AF_UNIX)
sock.connect(path)
call = {"method": "io.syntrop.Inference1.FetchDescriptor", "parameters": {"descriptor_id": descriptor}}
sock.sendall(json.dumps(call).encode() + b"\\0")
data, ancillary, _, _ = sock.recvmsg(65536, socket.CMSG_SPACE(64))
size = json.loads(data[:-1])["parameters"]["size"]
(fd,) = array.array("i", ancillary[0][2])
memory = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
total = sum(memory[::4096])
def pss():
    text = open("/proc/self/smaps_rollup").read()
    return int(re.search(r"^Pss_Shmem: +([0-9]+) kB", text, re.M)[1]) * 1024
print("mapped", total, flush=True)
for line in sys.stdin:
    print(pss(), sum(memory[::4096]), flush=True)
"""


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        select.select([], [], [], 0.01)


def handles(unit: Any, client: Any) -> int:
    """Descriptors that the daemon has open, once it has done with what the client asked before."""
    assert client.call("org.varlink.service.GetInfo").error is None
    return len(os.listdir(f"/proc/{unit.process.pid}/fd"))


def sealed(data: bytes = b"tensor") -> int:
    return memfd.create("tensor", data)


def give(client: Any, handle: int, size: int, **more: Any) -> Any:
    try:
        return client.call(PUBLISH, [handle], fd=0, size=size, **more)
    finally:
        os.close(handle)


def test_memory_is_handed_out_for_reading_and_stays_with_who_has_it(launch: Any) -> None:
    unit = launch("inferenced")
    publisher, consumer = launch.client(unit, "fd.sock"), launch.client(unit, "fd.sock")
    id = give(publisher, sealed(), 6, label="weights").parameters["descriptor_id"]
    reply = consumer.call(FETCH, descriptor_id=id)
    assert reply.parameters["size"] == 6
    (handle,) = reply.fds
    assert fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    assert memfd.verify(handle, 6) == 6
    with pytest.raises(OSError):
        os.write(handle, b"x")
    with pytest.raises(PermissionError):
        mmap.mmap(handle, 6, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    # Each peer has an offset of its own.
    (other,) = consumer.call(FETCH, descriptor_id=id).fds
    assert os.read(handle, 3) == b"ten" and os.read(other, 6) == b"tensor"
    os.close(other)

    assert publisher.call(RELEASE, descriptor_id=id).error is None
    gone = consumer.call(FETCH, descriptor_id=id)
    assert gone.error == INFERENCE + "DescriptorNotFound" and gone.parameters == {"descriptor_id": id}
    assert publisher.call(RELEASE, descriptor_id=id).error == INFERENCE + "DescriptorNotFound"
    assert os.pread(handle, 6, 0) == b"tensor"
    os.close(handle)


def test_two_processes_map_one_copy(launch: Any) -> None:
    unit = launch("inferenced")
    publisher = launch.client(unit, "fd.sock")
    id = give(publisher, sealed(b"\1" * TENSOR), TENSOR).parameters["descriptor_id"]
    command = [sys.executable, "-c", CONSUMER, str(unit.run / "syntrop/fd.sock"), id]
    consumers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        for one in consumers:
            assert one.stdout is not None
            assert one.stdout.readline() == f"mapped {TENSOR // 4096}\n"
        # What was published may end now: the memory is theirs.
        publisher.close()
        shares = []
        for one in consumers:
            assert one.stdin is not None and one.stdout is not None
            one.stdin.write("\n")
            one.stdin.flush()
            share, total = map(int, one.stdout.readline().split())
            assert total == TENSOR // 4096
            shares.append(share)
    finally:
        for one in consumers:
            one.communicate()
    # Two copies would count TENSOR for each.
    assert all(abs(share - TENSOR // 2) < TENSOR // 10 for share in shares), shares
    assert abs(sum(shares) - TENSOR) < TENSOR // 10, shares


def unsealed() -> int:
    return memfd.allocate("loose", 6)


def growable() -> int:
    handle = memfd.allocate("loose", 6)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    return handle


def resealable() -> int:
    handle = memfd.allocate("loose", 6)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)
    return handle


def pipe() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


REFUSED: dict[str, tuple[Callable[[], int], str]] = {
    "unsealed": (unsealed, "SHRINK, GROW, WRITE"),
    "growable": (growable, "the seals GROW"),
    "resealable": (resealable, "the seals SEAL"),
    "pipe": (pipe, "no memory file"),
    "folder": (lambda: os.open("/", os.O_RDONLY), "no memory file"),
    "path": (lambda: os.open("/", os.O_PATH), ""),
    "device": (lambda: os.open("/dev/zero", os.O_RDONLY), "no memory file"),
    "file": (lambda: os.open(__file__, os.O_RDONLY), "no memory file"),
}


def test_what_nobody_could_safely_map_is_refused(launch: Any) -> None:
    unit = launch("inferenced")
    client = launch.client(unit, "fd.sock")
    assert give(client, sealed(), 6).error is None  # what is made with the first call is there
    before = handles(unit, client)
    for name, (make, reason) in REFUSED.items():
        reply = give(client, make(), 6)
        assert reply.error == INFERENCE + "DescriptorRefused", name
        assert reason in reply.parameters["reason"], name
    for size in (5, 7, 1 << 40):
        reply = give(client, sealed(), size)
        expected = "QuotaExceeded" if size == 1 << 40 else "DescriptorRefused"
        assert reply.error == INFERENCE + expected
    for size in (0, -1, 1 << 62):
        assert give(client, sealed(), size).parameters == {"parameter": "size"}
    assert client.call(PUBLISH, fd=0, size=6).parameters == {"parameter": "fd"}  # none was passed
    reply = client.call(PUBLISH, [(handle := sealed())], fd=1, size=6)
    assert reply.parameters == {"parameter": "fd"}
    os.close(handle)
    assert give(client, sealed(), 6, label="x" * 257).parameters == {"parameter": "label"}
    assert client.call(FETCH, descriptor_id="d-0").error == INFERENCE + "DescriptorNotFound"
    assert handles(unit, client) == before


def test_only_on_its_own_socket(launch: Any) -> None:
    unit = launch("inferenced")
    for endpoint in ("io.syntrop.Inference1", "sentry.sock"):
        client = launch.client(unit, endpoint)
        for reply in (
            give(client, sealed(), 6),
            client.call(FETCH, descriptor_id="d-0"),
            client.call(RELEASE, descriptor_id="d-0"),
        ):
            assert reply.error == "org.varlink.service.MethodNotImplemented"


def test_a_thousand_publications_are_bounded_and_go_with_their_connection(launch: Any, tmp_path: Path) -> None:
    folder = tmp_path / "inferenced" / "etc"
    folder.mkdir(parents=True)
    (folder / "inferenced.toml").write_text("[descriptors]\ndescriptors_max = 900\n")
    unit = launch("inferenced")
    observer = launch.client(unit, "fd.sock")
    (kept,) = observer.call(FETCH, descriptor_id=give(observer, sealed(), 6).parameters["descriptor_id"]).fds
    before = handles(unit, observer)
    crowd = launch.client(unit, "fd.sock")
    handle = sealed()
    errors = [crowd.call(PUBLISH, [handle], fd=0, size=6).error for _ in range(1000)]
    os.close(handle)
    assert errors == [None] * 899 + [INFERENCE + "QuotaExceeded"] * 101
    assert handles(unit, crowd) == before + 899 + 2  # and the connection and its process
    crowd.close()
    wait_for(lambda: handles(unit, observer) == before, "all descriptors closed")
    assert give(observer, sealed(), 6).error is None
    assert os.pread(kept, 6, 0) == b"tensor"
    os.close(kept)


def test_a_publication_ends_with_its_publisher_s_process(launch: Any) -> None:
    unit = launch("inferenced")
    client = launch.client(unit, "fd.sock")
    assert give(client, sealed(), 6).error is None  # what is made with the first call is there
    before = handles(unit, client)
    # Its connection is passed on to us, so that it lives on when the process does not.
    program = """
import os, sys
sys.path.insert(0, sys.argv[2])
import json, socket
from syntrop.common import memfd
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
call = {"method": "io.syntrop.Inference1.PublishDescriptor", "parameters": {"fd": 0, "size": 6}}
socket.send_fds(sock, [json.dumps(call).encode() + b"\\0"], [memfd.create("tensor", b"tensor")])
print(json.loads(sock.recv(65536)[:-1])["parameters"]["descriptor_id"], flush=True)
socket.send_fds(socket.socket(fileno=0), [b"x"], [sock.fileno()])
sys.stdout.close()
import signal
signal.pause()
"""
    ours, theirs = socket.socketpair()
    source = str(Path(__file__).parents[3] / "src")
    command = [sys.executable, "-c", program, str(unit.run / "syntrop/fd.sock"), source]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True) as process:
        theirs.close()
        try:
            assert process.stdout is not None
            id = process.stdout.readline().strip()
            _, fds, _, _ = socket.recv_fds(ours, 1, 1)
            reply = client.call(FETCH, descriptor_id=id)
            assert reply.error is None, (id, reply.parameters)
            (handle,) = reply.fds
        finally:
            process.kill()
    wait_for(
        lambda: client.call(FETCH, descriptor_id=id).error == INFERENCE + "DescriptorNotFound",
        "the end of the publication",
    )
    assert os.pread(handle, 6, 0) == b"tensor"
    for fd in (handle, *fds):
        os.close(fd)
    ours.close()
    wait_for(lambda: handles(unit, client) == before, "all descriptors closed")


def test_the_daemon_stays_while_anything_is_published(launch: Any) -> None:
    unit = launch("inferenced", idle=0.2, start=False)
    client = launch.client(unit, "fd.sock")
    memory = sealed()
    client.send(PUBLISH, [memory], fd=0, size=6)
    os.close(memory)
    unit.start()
    id = client.receive().parameters["descriptor_id"]
    with pytest.raises(subprocess.TimeoutExpired):
        unit.process.wait(1.5)
    (handle,) = client.call(FETCH, descriptor_id=id).fds
    assert client.call(RELEASE, descriptor_id=id).error is None
    assert unit.wait() == 0
    assert os.pread(handle, 6, 0) == b"tensor"
    os.close(handle)
