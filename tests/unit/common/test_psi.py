# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common import loop, psi

TEXT = "some avg10=5.07 avg60=1.58 avg300=0.43 total=4550807\nfull avg10=0.00 avg60=0.25 avg300=0.00 total=17\n"


def test_parse() -> None:
    found = psi.parse(TEXT)
    assert found.some == psi.Line(5.07, 1.58, 0.43, 4550807)
    assert found.full == psi.Line(0.0, 0.25, 0.0, 17)
    assert psi.parse(TEXT.splitlines()[0]).full is None
    assert psi.parse(TEXT + "soft avg10=x\n" + "irq full\n").some.total == 4550807


@pytest.mark.parametrize(
    "text",
    [
        "",
        "full avg10=0.00 avg60=0.25 avg300=0.00 total=17\n",
        "some avg10=0.00 avg60=0.25 avg300=0.00\n",
        "some avg10=0.00 avg60=0.25 total=1\n",
        "some avg10=x avg60=0.25 avg300=0.00 total=1\n",
        "some avg10=nan avg60=0.25 avg300=0.00 total=1\n",
        "some avg10=100.01 avg60=0.25 avg300=0.00 total=1\n",
        "some avg10=-1 avg60=0.25 avg300=0.00 total=1\n",
        "some avg10=0 avg60=0 avg300=0 total=-1\n",
        "some avg10=0 avg60=0 avg300=0 total=1.5\n",
    ],
)
def test_what_is_no_pressure_file_is_refused(text: str) -> None:
    with pytest.raises(psi.MalformedPressure):
        psi.parse(text)


PERCENT = st.floats(0, 100).map(lambda value: round(value, 2))


@given(st.tuples(PERCENT, PERCENT, PERCENT, st.integers(0, 2**63)), st.booleans())
def test_every_kernel_line_reads_back(values: tuple[float, float, float, int], full: bool) -> None:
    line = "avg10={:.2f} avg60={:.2f} avg300={:.2f} total={}\n".format(*values)
    found = psi.parse(f"some {line}" + (f"full {line}" if full else ""))
    assert found.some == psi.Line(*values)
    assert (found.full is not None) is full


@given(st.text(max_size=200))
def test_any_text_parses_or_is_malformed(text: str) -> None:
    try:
        psi.parse(text)
    except psi.MalformedPressure:
        pass


def test_read_of_system_and_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "memory").write_text(TEXT)
    (tmp_path / "io.pressure").write_text(TEXT.replace("5.07", "9.50"))
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path))
    assert psi.read("memory").some.avg10 == 5.07
    assert psi.read("io", str(tmp_path)).some.avg10 == 9.5
    with pytest.raises(psi.PressureUnavailable, match="No such file"):
        psi.read("cpu")
    with pytest.raises(ValueError, match="swap"):
        psi.read("swap")


def test_the_real_kernel_s_files_parse() -> None:
    for resource in psi.RESOURCES:
        assert psi.read(resource).some.total >= 0


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ((300_000, 2_000_000), (300_000, 2_000_000)),
        ((150_000, 1_000_000), (300_000, 2_000_000)),
        ((100_000, 500_000), (400_000, 2_000_000)),
        ((300_000, 3_000_000), (400_000, 4_000_000)),
        ((1, 9_999_999), (1, 10_000_000)),
    ],
)
def test_unprivileged_windows_keep_the_share(asked: tuple[int, int], granted: tuple[int, int]) -> None:
    assert psi.unprivileged_window(*asked) == granted


def test_a_refused_trigger_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path))

    async def main() -> None:
        with pytest.raises(psi.TriggerUnavailable, match="no pressure accounting"):
            psi.Trigger("memory", lambda: None)
        (tmp_path / "pressure").mkdir()
        (tmp_path / "pressure" / "memory").mkdir()
        with pytest.raises(psi.TriggerUnavailable, match="directory"):
            psi.Trigger("memory", lambda: None)
        for bad in ({"stall_usec": 0}, {"window_usec": 1}, {"window_usec": 20_000_000}, {"kind": "most"}):
            with pytest.raises(ValueError, match=r"window|kind"):
                psi.Trigger("memory", lambda: None, **bad)

    loop.run(main())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_refusal_of_unprivileged_triggers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_handle: int, _data: bytes) -> int:
        raise PermissionError(1, "Operation not permitted")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", refuse)
            with pytest.raises(psi.TriggerUnavailable, match="CAP_SYS_RESOURCE"):
                psi.Trigger("cpu", lambda: None)

    loop.run(main())


def test_the_kernel_fires_a_trigger_under_pressure() -> None:
    """Four busy processes on fewer cores stall each other; without CAP_SYS_RESOURCE the window is 2 s."""
    fired = 0

    async def main() -> None:
        nonlocal fired
        event = loop.Event()
        count = 2 * (os.cpu_count() or 1) + 2
        children: list[int] = []
        with psi.Trigger("cpu", event.set, stall_usec=20_000, window_usec=1_000_000) as trigger:
            assert trigger.window_usec in (1_000_000, 2_000_000)
            try:
                while len(children) < count:
                    children.append(os.posix_spawn("/bin/sh", ["sh", "-c", "while :; do :; done"], {}))
                with loop.deadline(20):
                    while fired < 2:
                        await event.wait()
                        event.clear()
                        fired += 1
            finally:
                for child in children:
                    os.kill(child, 9)
                    os.waitpid(child, 0)
        assert trigger.fileno() == -1
        trigger.close()

    started = time.monotonic()
    loop.run(main())
    assert fired == 2
    assert time.monotonic() - started < 20
