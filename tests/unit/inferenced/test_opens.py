# SPDX-License-Identifier: Apache-2.0
"""Who opens devices: real files in the place of nodes, real processes, the kernel's own notices."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from syntrop.common import loop
from syntrop.inferenced import fdinfo, opens
from syntrop.inferenced.lease import Holder, Lease, Slice
from syntrop.inferenced.plane import Plane, Topology
from syntrop.inferenced.tier import Tier

SLICES = {"user.slice": Tier.INTERACTIVE, "system.slice": Tier.BATCH}
TOPOLOGY = Topology([Plane("gpu0", "card", "gpu", 1 << 30, device="dri/renderD128")])
HOLD = "import sys, time; held = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"


def lease(tier: Tier, name: str = "l1") -> Lease:
    return Lease(name, tier, Holder(1, 2, 3), (Slice("gpu0", "gpu0", 10),), 1)


@pytest.mark.parametrize(
    ("tier", "group", "gives_way"),
    [
        (Tier.BATCH, "/user.slice/user-1.slice/session-1.scope", True),
        (Tier.INTERACTIVE, "/user.slice/user-1.slice/session-1.scope", False),
        (Tier.INTERACTIVE, "/system.slice/x.service", True),
        (Tier.EMERGENCY, "/system.slice/x.service", False),
        (Tier.INTERACTIVE, "/other.slice/x.service", False),
        (Tier.BATCH, "", True),
    ],
)
def test_a_lease_is_worth_no_more_than_its_slice(tier: Tier, group: str, gives_way: bool) -> None:
    assert opens.stronger(lease(tier), Tier.INTERACTIVE, SLICES, group) == gives_way


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SYNTROP_HOST_ROOT", str(tmp_path))
    folder = tmp_path / "dev/dri"
    folder.mkdir(parents=True)
    (folder / "renderD128").write_bytes(b"")
    return folder / "renderD128"


class Opener:
    """A process that has a file open until it is told to end."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"open\n"
        self.pid = self._process.pid

    def end(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture
def opener(node: Path) -> Iterator[Opener]:
    one = Opener(node)
    yield one
    one.end()


def test_clients_are_found_by_their_open_files(opener: Opener) -> None:
    found = opens.clients(TOPOLOGY, fdinfo.look().files)
    assert [pid for pid, _ in found["gpu0"]] == [opener.pid]


async def until(condition: object) -> None:
    end = monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert monotonic() < end
        await loop.sleep(0.01)


def test_the_weaker_stand_aside_while_a_stronger_client_has_it_open(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, ...]] = []
    groups = {2: "/system.slice/batch.service"}
    monkeypatch.setattr(opens, "_group", lambda holder: groups.get(holder.pid, "/system.slice/x.service"))

    async def main() -> None:
        held = [lease(Tier.BATCH), lease(Tier.INTERACTIVE, "l2")]
        watching = opens.Opens(
            lambda: TOPOLOGY,
            SLICES,
            lambda plane: held if plane == "gpu0" else [],
            lambda cause, leases, reason: told.append((cause, *(one.id for one in leases))),
            lambda cause: told.append(("over", cause)),
            lambda: loop.thread(fdinfo.look),
        )
        watching.watch()
        stranger = Opener(node)  # of the same slice: nobody has to go for it
        await loop.sleep(0.2)
        assert told == []
        person = Opener(node)
        groups[person.pid] = "/user.slice/user-1000.slice/session-1.scope"
        node.read_bytes()  # one event more, now that its group is told right
        cause = f"process {person.pid}"
        await until(lambda: told)
        assert told[0] == (cause, "l1", "l2")
        stranger.end()
        person.end()
        await until(lambda: ("over", cause) in told)
        watching.rest()

    loop.run(main())


def test_a_machine_without_devices_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTROP_HOST_ROOT", str(tmp_path))

    async def main() -> None:
        with pytest.raises(OSError, match="device"):
            opens.Notices(lambda: None)

    loop.run(main())
