# SPDX-License-Identifier: Apache-2.0
"""runtimed and inferenced as processes: memory is leased before it is used, given back when a stronger wants it,
and refused by number. The machine's memory is a captured one, so that the numbers are the same anywhere."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


runtimed: Any = _module("runtimed_suite_l", HERE / "test_runtimed.py")
engine: Any = _module("runtimed_engine_l", HERE / "test_runtimed_engine.py")
RUNTIME, INFERENCE, SENTRY = runtimed.RUNTIME, "io.syntrop.Inference1", "sentry.sock"
Client = runtimed.Client

MIB = 1 << 20
MEMORY = 1024 * MIB
LENDABLE = MEMORY - 256 * MIB  # without inferenced's host_reserve
STEP = 64 * MIB
PROMPT = "abc" * 600


class Suite(runtimed.Suite):  # type: ignore[misc]
    """runtimed, modeld, and inferenced once it is started, on a machine with `MEMORY` bytes, none in use."""

    def __init__(self, folder: Path, *more: str) -> None:
        super().__init__(idle=-1)
        self.proc = folder / "proc"
        self.proc.mkdir()
        (self.proc / "meminfo").write_text(f"MemTotal: {MEMORY >> 10} kB\nMemAvailable: {MEMORY >> 10} kB\n")
        for name in ("self", "sys", "cpuinfo", str(os.getpid())):
            (self.proc / name).symlink_to(Path("/proc", name))
        (folder / "sys").mkdir()
        (folder / "sys" / "fs").symlink_to("/sys/fs")
        self.machine = {"SYNTROP_PROC_ROOT": str(self.proc), "SYNTROP_SYS_ROOT": str(folder / "sys")}
        self.log = folder / "log"
        # Nothing depends on how fast a busy machine is.
        (self.root / "config" / "inferenced.toml").write_text("[preemption]\nyield_ms = 60000\n")
        options = ("--lease-wait-sec=60", "--yield-sec=1", *more)
        runtime = self.start("runtimed", RUNTIME, *options, log=self.log)
        (self.proc / str(runtime.pid)).symlink_to(f"/proc/{runtime.pid}")
        self.register(engine.tiny_file(folder / "tiny.gguf"), engine.MODEL)

    def start(self, *words: str, log: Path | None = None, **options: Any) -> Any:
        error = None if log is None else os.dup(2)
        if log is not None:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 2)
            os.close(handle)
        try:
            return super().start(*words, **options)
        finally:
            if error is not None:
                os.dup2(error, 2)
                os.close(error)

    def inferenced(self) -> None:
        os.environ.update(self.machine)
        try:
            for name in ("fd.sock", SENTRY, "gateway.sock"):
                self.endpoint(name).unlink(missing_ok=True)
            self.start("inferenced", INFERENCE, "--idle-exit-sec=0")
        finally:
            for name in self.machine:
                del os.environ[name]

    def ask(self, method: str, endpoint: str = INFERENCE, **parameters: Any) -> dict[str, Any]:
        with Client(self.endpoint(endpoint)) as client:
            result: dict[str, Any] = client.call(f"{INFERENCE}.{method}", **parameters)
            return result

    def leases(self) -> dict[str, int]:
        """Bytes by identifier, of runtimed."""
        pid = self.processes["runtimed"].pid
        found = self.ask("ListLeases")["leases"]
        return {one["id"]: one["allocated_memory"] for one in found if one["client_pid"] == pid}

    def used(self) -> int:
        result: int = engine.load(self)["used_bytes"]
        return result

    def said(self, text: str) -> int:
        return self.log.read_text().count(text)


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Suite]:
    made = Suite(tmp_path)
    yield made
    made.stop()
    print(made.log.read_text())  # pytest shows it when the test has failed


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def fault_of(suite: Suite, **parameters: Any) -> str:
    """The reason of an Overloaded."""
    with pytest.raises(runtimed.VarlinkFault) as caught:
        engine.generate(suite, **parameters)
    assert caught.value.error == "Overloaded"
    reason: str = caught.value.parameters["reason"]
    return reason


def test_memory_is_leased_before_the_first_token_and_follows_what_is_in_use(suite: Suite) -> None:
    suite.inferenced()
    with suite.runtime() as client:
        pieces = client.stream(f"{RUNTIME}.Generate", model=engine.MODEL, prompt=PROMPT, max_tokens=50)
        first = next(pieces)
        assert first["start"]["prompt_tokens"] > 0
        [size] = suite.leases().values()
        assert size == 2 * STEP, "less than a step is in use, and a step is ahead"
        assert list(pieces)
    assert 0 < suite.used() <= size
    with suite.runtime() as client:
        assert client.call(f"{RUNTIME}.UnloadModel", model=engine.MODEL)["freed_bytes"] > 0
    until(lambda: not suite.leases(), "the lease goes with the last model")
    assert suite.said("working without") == 0


def test_what_a_stronger_one_wants_is_given_back_in_time(suite: Suite) -> None:
    suite.inferenced()
    engine.generate(suite, PROMPT)
    [(lease, size)] = suite.leases().items()
    before = suite.used()
    emergency = {"priority": "EmergencyTriage", "endpoint": SENTRY}
    # A part of what is ahead is enough: nothing in use has to go.
    granted = suite.ask("AcquireLease", memory_bytes=LENDABLE - size + MIB, **emergency)
    assert suite.leases() == {lease: size - MIB} and suite.used() == before
    until(
        lambda: suite.said(f"gave up 0 of {before} bytes in use, and {MIB} of {size} bytes leased"), "it says so"
    )
    suite.ask("ReleaseLease", lease_id=granted["lease_id"])
    # What is kept of the prompt has to go, the model may stay.
    weights = engine.load(suite)["models"][0]["memory_bytes"]
    assert weights < before
    granted = suite.ask("AcquireLease", memory_bytes=LENDABLE - weights, **emergency)
    assert suite.leases() == {lease: weights} and suite.used() == weights
    until(lambda: suite.said(f"gave up {before - weights} of {before} bytes in use"), "it says so")
    # There is no room for a prompt beside it now, and that has numbers.
    reason = fault_of(suite, prompt=PROMPT)
    assert "bytes" in reason
    suite.ask("ReleaseLease", lease_id=granted["lease_id"])
    # Everything has to go.
    granted = suite.ask("AcquireLease", memory_bytes=LENDABLE, **emergency)
    assert suite.leases() == {} and suite.used() == 0
    until(lambda: suite.said(f"gave up {weights} of {weights} bytes in use"), "it says so")
    reason = fault_of(suite)
    assert "inferenced has 0" in reason
    suite.ask("ReleaseLease", lease_id=granted["lease_id"])
    engine.generate(suite, PROMPT)
    assert len(suite.leases()) == 1


def test_batch_work_gives_its_cache_up_and_goes_on_later(suite: Suite) -> None:
    suite.inferenced()
    how = {"model": engine.MODEL, "prompt": PROMPT, "max_tokens": 2000, "temperature": 1.0, "seed": 7}
    undisturbed = engine.generate(suite, **how)["text"]
    weights = engine.load(suite)["models"][0]["memory_bytes"]
    with suite.runtime() as client:
        pieces = client.stream(f"{RUNTIME}.Generate", priority="Batch", **how)
        next(pieces)
        emergency = {"priority": "EmergencyTriage", "endpoint": SENTRY}
        granted = suite.ask("AcquireLease", memory_bytes=LENDABLE - weights, **emergency)
        assert list(suite.leases().values()) == [weights]
        suite.ask("ReleaseLease", lease_id=granted["lease_id"])
        *_, last = pieces
    assert last["result"]["text"] == undisturbed


def test_without_room_a_model_is_refused_by_number(suite: Suite) -> None:
    suite.inferenced()
    room = 10_000
    granted = suite.ask("AcquireLease", priority="Interactive", memory_bytes=LENDABLE - room)
    reason = fault_of(suite)
    assert "of cpu0 are wanted, inferenced has 10000" in reason
    assert suite.leases() == {} and suite.used() == 0
    suite.ask("ResizeLease", lease_id=granted["lease_id"], memory_bytes=LENDABLE - 10 * MIB)
    engine.generate(suite)
    assert list(suite.leases().values()) == [10 * MIB], "as much ahead as there is"


def test_what_a_call_has_leased_itself_is_not_leased_again(suite: Suite) -> None:
    suite.inferenced()
    engine.generate(suite, "abc")
    weights = engine.load(suite)["models"][0]["memory_bytes"]
    # Nobody but the gateway has room left, so that our own lease cannot grow for the cache.
    [(lease, size)] = suite.leases().items()
    emergency = {"priority": "EmergencyTriage", "endpoint": SENTRY}
    granted = suite.ask("AcquireLease", memory_bytes=LENDABLE - weights, **emergency)
    assert suite.leases() == {lease: weights} and suite.used() == weights
    assert "bytes" in fault_of(suite, prompt=PROMPT)
    how = {"model": engine.MODEL, "prompt": PROMPT, "max_tokens": 50}
    with suite.runtime() as client:
        assert list(client.stream(f"{RUNTIME}.Generate", leased_bytes=STEP, **how))
    until(lambda: suite.used() == weights, "what is not leased is given up")
    # So long that it is not over, on a busy machine, before one has looked at it; then it is broken off.
    how = {**how, "max_tokens": 14_000, "temperature": 1.0, "seed": 7}
    with suite.runtime() as client:
        pieces = client.stream(f"{RUNTIME}.Generate", leased_bytes=STEP, **how)
        next(pieces)
        assert suite.used() > weights
        assert suite.leases() == {lease: weights}
        assert "delta" in next(pieces)
    # What is kept of it was nobody's any more.
    until(lambda: suite.used() == weights, "what is not leased is given up")
    assert "bytes" in fault_of(suite, prompt=PROMPT)
    # It is the same where a model that generates embeds.
    with suite.runtime() as client:
        text = {"model": engine.MODEL, "text": PROMPT[:200]}
        with pytest.raises(runtimed.VarlinkFault, match="Overloaded"):
            client.call(f"{RUNTIME}.Embed", **text)
        assert client.call(f"{RUNTIME}.Embed", leased_bytes=STEP, **text)["embedding"]
        assert suite.leases() == {lease: weights}
        with pytest.raises(runtimed.VarlinkFault) as caught:
            client.call(f"{RUNTIME}.Embed", leased_bytes=-1, **text)
        assert caught.value.parameters == {"parameter": "leased_bytes", "reason": "less than none"}
    until(lambda: suite.used() == weights, "what is not leased is given up")
    suite.ask("ReleaseLease", lease_id=granted["lease_id"])
    assert size == 2 * STEP


def press(suite: Suite, percent: int) -> None:
    """How much of the last ten seconds tasks waited for memory."""
    folder = suite.proc / "pressure"
    folder.mkdir(exist_ok=True)
    for name in ("cpu", "memory", "io"):
        lines = [f"{kind} avg10={percent}.00 avg60=0.00 avg300=0.00 total=1\n" for kind in ("some", "full")]
        (folder / name).with_suffix(".new").write_text("".join(lines))
        (folder / name).with_suffix(".new").rename(folder / name)


def test_at_critical_pressure_a_load_waits_for_it_to_pass(suite: Suite) -> None:
    press(suite, 99)
    config = suite.root / "config" / "inferenced.toml"
    config.write_text(config.read_text() + "[tuning]\nlevel_hold_sec = 0.0\n")
    suite.inferenced()
    with suite.runtime() as client:
        pieces = client.stream(f"{RUNTIME}.Generate", model=engine.MODEL, prompt=PROMPT, max_tokens=5)
        told: list[Any] = []
        waiting = threading.Thread(target=lambda: told.extend(pieces))
        waiting.start()
        until(lambda: suite.ask("GetPressure")["level"] == "critical", "pressure is critical")
        waiting.join(1.0)
        assert not told and not suite.leases() and suite.used() == 0
        press(suite, 0)
        waiting.join(60)
        assert told and len(suite.leases()) == 1
    # What is leased already can be used.
    press(suite, 99)
    until(lambda: suite.ask("GetPressure")["level"] == "critical", "pressure is critical")
    engine.generate(suite, PROMPT)


def test_at_lasting_critical_pressure_a_load_is_refused(tmp_path: Path) -> None:
    suite = Suite(tmp_path, "--pressure-wait-sec=0.5")
    try:
        press(suite, 99)
        suite.inferenced()
        assert "pressure is critical" in fault_of(suite)
        assert not suite.leases() and suite.used() == 0
        assert suite.said("working without") == 0
    finally:
        suite.stop()


def test_without_inferenced_it_works_and_says_so_once(suite: Suite) -> None:
    text = engine.generate(suite, PROMPT)["text"]
    with suite.runtime() as client:
        client.call(f"{RUNTIME}.UnloadModel", model=engine.MODEL)
    assert engine.generate(suite, PROMPT)["text"] == text
    suite.processes["runtimed"].send_signal(signal.SIGUSR1)
    until(lambda: suite.said("Batch work stands still for 1 s; gave up"), "a signal by hand does what it did")
    assert suite.said("working without one") == 1


def test_a_killed_inferenced_loses_nothing(suite: Suite) -> None:
    suite.inferenced()
    engine.generate(suite, PROMPT)
    before = suite.leases()
    suite.processes["inferenced"].kill()
    suite.processes["inferenced"].wait()
    engine.generate(suite, PROMPT)
    suite.inferenced()
    assert suite.leases() == before
    [size] = before.values()
    suite.ask("AcquireLease", SENTRY, priority="EmergencyTriage", memory_bytes=LENDABLE - size + MIB)
    assert list(suite.leases()) == list(before) and list(suite.leases().values()) == [size - MIB]


def test_the_suite_goes_to_sleep_with_its_leases(stocked_suite: Any) -> None:
    """All of it under the activator: inferenced is started for the lease, and ends after who holds it."""
    Path(stocked_suite.config, "runtimed.toml").write_text("lease_wait_sec = 60.0\n")
    with Client(stocked_suite.endpoint(RUNTIME)) as client:
        pieces = client.stream(f"{RUNTIME}.Generate", model="smollm2:135m", prompt="Once", max_tokens=3)
        next(pieces)
        with Client(stocked_suite.endpoint(INFERENCE)) as other:
            [lease] = other.call(f"{INFERENCE}.ListLeases")["leases"]
        assert [lease["client_pid"]] == stocked_suite.pids("runtimed") and lease["plane_id"].startswith("cpu")
        assert lease["allocated_memory"] > STEP
        assert list(pieces)
    stocked_suite.wait_asleep(60)
