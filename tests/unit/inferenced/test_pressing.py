# SPDX-License-Identifier: Apache-2.0
"""How pressure is heard of while leases are held: from the kernel, by the manager's file, or by a timer."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from time import monotonic

import pytest

from syntrop.common import loop, psi
from syntrop.common.settings import resolve
from syntrop.inferenced import pressing
from syntrop.inferenced.settings import TABLE

LINES = "some avg10={0} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
GIVEN = ("MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE")


class Look(list[str]):
    """Looks that nobody asked for, each with the level that it found."""

    def __init__(self) -> None:
        self.pressing = pressing.Pressing(resolve("inferenced", TABLE, []), self.more)

    def more(self) -> None:
        self.append(self.pressing.level())


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pressure files of a machine whose kernel grants no triggers."""
    folder = tmp_path / "pressure"
    folder.mkdir()
    for name in psi.RESOURCES:
        (folder / name).write_text(LINES.format("0.00"))
    (folder / "memory").unlink()
    (folder / "memory").mkdir()
    for name in GIVEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SYNTROP_CONFIG_ROOT", str(tmp_path))
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path))
    return folder


def test_the_kernel_is_asked_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SYNTROP_CONFIG_ROOT", str(tmp_path))

    async def main() -> None:
        look = Look()
        look.pressing.watch()
        assert type(look.pressing._trigger) is psi.Trigger
        assert look.pressing._timer is None
        look.pressing.rest()
        assert look.pressing._trigger is None

    loop.run(main())


def test_what_the_manager_opens_to_us_comes_next(
    files: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(GIVEN[0], "/proc/pressure/memory")
    monkeypatch.setenv(GIVEN[1], b64encode(b"some 200000 2000000\0").decode())

    async def main() -> None:
        look = Look()
        for _ in range(2):
            look.pressing.watch()
            assert isinstance(look.pressing._trigger, psi.GivenTrigger)
            assert look.pressing._timer is None
            look.pressing.rest()

    loop.run(main())
    assert capfd.readouterr().err.count("our own group") == 1


@pytest.mark.parametrize(
    ("path", "write"),
    [
        (None, None),
        ("/dev/null", None),
        ("relative", ""),
        ("/proc/pressure/memory", "!"),
        ("/proc/pressure/memory", b64encode(b"nonsense\0").decode()),
        ("/no/such/file", ""),
    ],
)
def test_last_comes_a_slow_timer(
    files: Path,
    path: str | None,
    write: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in zip(GIVEN, (path, write), strict=True):
        if value is not None:
            monkeypatch.setenv(name, value)

    async def until(condition: object) -> None:
        end = monotonic() + 60
        while not condition():  # type: ignore[operator]
            assert monotonic() < end
            await loop.sleep(0.01)

    async def main() -> None:
        look = Look()
        monkeypatch.setattr(pressing, "SLOW", 0.01)
        monkeypatch.setattr(pressing, "FRESH", 0.0)
        look.pressing.watch()
        assert look.pressing._trigger is None
        (files / "memory").rmdir()
        (files / "memory").write_text(LINES.format("0.00"))
        await until(lambda: look[-1:] == ["normal"])
        (files / "memory").write_text(LINES.format("99.00"))
        await until(lambda: look[-1:] == ["critical"])
        look.pressing.rest()
        assert look.pressing._timer is None

    loop.run(main())
    said = capfd.readouterr().err
    assert said.count("our own group") == said.count("read every") == 1
