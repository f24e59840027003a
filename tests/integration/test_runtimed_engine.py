# SPDX-License-Identifier: Apache-2.0
"""runtimed as a process, under what a host may do to it: crowds that hang up, absurd prompts, models that are
replaced, memory that runs out. A tiny model is enough: what counts is that errors have names and all comes
back."""

from __future__ import annotations

import importlib.util
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


runtimed: Any = _module("runtimed_suite", HERE / "test_runtimed.py")
tinymodel: Any = _module("tinymodel_engine", HERE.parent / "unit" / "runtimed" / "tinymodel.py")
RUNTIME, Client, VarlinkFault = runtimed.RUNTIME, runtimed.Client, runtimed.VarlinkFault

CONTEXT = 4096
MODEL = "tiny:1"


def tiny_file(path: Path, seed: int = 1) -> Path:
    """A model with a byte for a token, which says nonsense."""
    from syntrop.runtimed.tokenizer import CONTROL, NORMAL
    from syntrop.runtimed.tokenizer_bpe import BYTE_TO_CHAR

    tiny = tinymodel.Tiny(layers=2, vocab=257, context=CONTEXT, seed=seed)
    tiny.metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*BYTE_TO_CHAR, "<end>"],
        "tokenizer.ggml.token_type": [NORMAL] * 256 + [CONTROL],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 256,
    }
    path.write_bytes(tiny.file())
    return path


@pytest.fixture
def suites(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made = []

    def make(*options: str) -> Any:
        suite = runtimed.Suite(*options)
        made.append(suite)
        suite.register(tiny_file(tmp_path / "tiny.gguf"), MODEL)
        return suite

    yield make
    for suite in made:
        suite.stop()


def generate(suite: Any, prompt: str = "abc", model: str = MODEL, **parameters: Any) -> dict[str, Any]:
    how = {"max_tokens": 20, "temperature": 1.0, "seed": 3, **parameters}
    with suite.runtime() as client:
        result: dict[str, Any] = client.call(f"{RUNTIME}.Generate", model=model, prompt=prompt, **how)["result"]
        return result


def fault(suite: Any, **parameters: Any) -> Any:
    with pytest.raises(VarlinkFault) as caught:
        generate(suite, **parameters)
    return caught.value


CANDIDATES = [{"name": "a", "token": " yes"}, {"name": "b", "token": " no"}]


def decide(suite: Any, prompt: str, **parameters: Any) -> dict[str, Any]:
    with suite.runtime() as client:
        how = {"model": MODEL, "prompt": prompt, "candidates": CANDIDATES, **parameters}
        result: dict[str, Any] = client.call(f"{RUNTIME}.Decide", **how)["result"]
        return result


def decision_fault(suite: Any, **parameters: Any) -> Any:
    with pytest.raises(VarlinkFault) as caught:
        decide(suite, "abc", **parameters)
    return caught.value


def load(suite: Any) -> dict[str, Any]:
    with suite.runtime() as client:
        result: dict[str, Any] = client.call(f"{RUNTIME}.GetLoad")
        return result


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def descriptors(suite: Any) -> int:
    return len(os.listdir(f"/proc/{suite.processes['runtimed'].pid}/fd"))


def status(suite: Any, field: str) -> int:
    """Kilobytes."""
    text = Path(f"/proc/{suite.processes['runtimed'].pid}/status").read_text()
    return int(text.split(field + ":")[1].split()[0])


def test_sixty_four_streams_that_hang_up_leave_nothing(suites: Callable[..., Any]) -> None:
    suite = suites("--slots", "16")
    generate(suite)
    base = load(suite)["used_bytes"]
    files, size = descriptors(suite), 0
    chance = random.Random(3)

    def caller(number: int, pieces: int) -> None:
        with suite.runtime() as client:
            how = {"model": MODEL, "prompt": f"{number} " * 40, "max_tokens": 300, "temperature": 1.0}
            for _ in client.stream(f"{RUNTIME}.Generate", **how):
                pieces -= 1
                if pieces < 0:
                    return

    for _ in range(3):
        with ThreadPoolExecutor(64) as pool:
            list(pool.map(caller, range(64), [chance.randrange(60) for _ in range(64)]))
        until(lambda: load(suite)["available_slots"] == 16, "a generation outlived its caller")
        until(lambda: descriptors(suite) <= files, "descriptors leak")
        with suite.runtime() as client:
            client.call(f"{RUNTIME}.CompactKvCache")
        assert load(suite)["used_bytes"] <= base, "blocks leak"
        # The first crowd brings arenas and stacks along; the next ones find them.
        size = size or status(suite, "VmRSS")
    assert status(suite, "VmRSS") < size + 8192


def test_a_million_tokens_are_refused_by_number(suites: Callable[..., Any]) -> None:
    suite = suites()
    text = generate(suite)["text"]
    files, used = descriptors(suite), load(suite)["used_bytes"]
    before = status(suite, "VmHWM")
    given = ({"prompt": "x" * 1_000_000}, {"prompt": None, "prompt_ids": [120] * 1_000_000})
    for how in given:
        error = fault(suite, **how)
        assert error.error == "ContextExceeded"
        assert error.parameters["max"] == CONTEXT
        assert CONTEXT < error.parameters["requested"] <= 1_000_001
        assert load(suite)["available_slots"] == 4
    # What the calls themselves take (the ids are 5 MB of JSON), and no caches.
    assert status(suite, "VmHWM") < before + 65536
    assert load(suite)["used_bytes"] == used
    until(lambda: descriptors(suite) <= files, "descriptors leak")
    assert generate(suite)["text"] == text


def test_ten_thousand_tiny_requests_leave_nothing(suites: Callable[..., Any]) -> None:
    suite = suites("--slots", "8")

    def caller(number: int, rounds: int) -> None:
        with suite.runtime() as client:
            for turn in range(rounds):
                for one in range(25):
                    prompt = f"{number} {turn} {one}"
                    how = {"model": MODEL, "prompt": prompt, "max_tokens": 1 + one % 2, "temperature": 1.0}
                    client.send(f"{RUNTIME}.Generate", how)
                for _ in range(25):
                    assert client.receive()["parameters"]["result"]["completion_tokens"]

    def crowd(rounds: int) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(caller, range(8), [rounds] * 8))
        with suite.runtime() as client:
            client.call(f"{RUNTIME}.CompactKvCache")

    crowd(5)  # brings arenas and stacks along
    until(lambda: load(suite)["available_slots"] == 8, "a generation outlived its caller")
    base, size, files = load(suite)["used_bytes"], status(suite, "VmRSS"), descriptors(suite)
    crowd(45)
    until(lambda: load(suite)["available_slots"] == 8, "a generation outlived its caller")
    assert load(suite)["used_bytes"] == base, "blocks leak"
    until(lambda: descriptors(suite) <= files, "descriptors leak")
    assert status(suite, "VmRSS") < size + 4096


def test_a_model_that_is_replaced_goes_on_until_its_name_is_looked_at(
    suites: Callable[..., Any], tmp_path: Path
) -> None:
    suite = suites()
    before = generate(suite)["text"]
    digest = runtimed.Client(suite.endpoint(runtimed.STORE)).call(f"{runtimed.STORE}.Inspect", id=MODEL)["info"][
        "digest"
    ]
    with suite.runtime() as client:
        how = {"model": MODEL, "prompt": "abc", "max_tokens": 2000, "temperature": 1.0, "seed": 3}
        stream = client.stream(f"{RUNTIME}.Generate", **how)
        text = next(stream)["delta"]
        suite.register(tiny_file(tmp_path / "other.gguf", seed=2), MODEL)
        # The old file is not only unlinked but emptied: what is still mapped of it would be a fault to touch.
        blobs = list((suite.root / "state").rglob(f"*{digest.partition(':')[2]}*"))
        assert blobs
        for blob in blobs:
            if not blob.is_symlink():
                blob.chmod(0o600)
                os.truncate(blob, 0)
            blob.unlink()
        for reply in stream:
            text += reply.get("delta") or ""
    assert text.startswith(before)
    assert generate(suite, model=digest)["text"] == before
    with suite.runtime() as client:
        client.call(f"{RUNTIME}.UnloadModel", model=digest)
    assert generate(suite)["text"] != before


def test_memory_at_its_limit_has_names_and_numbers(suites: Callable[..., Any], tmp_path: Path) -> None:
    first = suites()
    generate(first)
    need = first_model(first)["memory_bytes"]
    block = 2 * 2 * 2 * 32 * 16 * 2  # layers × KV heads × (keys, values) × head × tokens × bytes
    suite = suites("--memory-max", str(need + 4 * block))
    suite.register(tiny_file(tmp_path / "other.gguf", seed=2), "other:1")
    text = generate(suite)["text"]
    error = fault(suite, prompt="x" * 64)
    assert error.error == "Overloaded"
    assert f"64 tokens of prompt do not fit into the {4 * block} bytes" in error.parameters["reason"]
    error = fault(suite, prompt="x" * 40, max_tokens=1000)
    assert error.error == "Overloaded"
    assert f"0 of the {need + 4 * block} allowed are free" in error.parameters["reason"]
    # So do texts that are decided and embedded.
    for method, how in (
        (
            "Decide",
            {"prompt": "x" * 40, "candidates": [{"name": "a", "token": "y" * 40}, {"name": "b", "token": "z"}]},
        ),
        ("Embed", {"text": "x" * 100}),
    ):
        with suite.runtime() as client, pytest.raises(VarlinkFault) as caught:
            client.call(f"{RUNTIME}.{method}", model=MODEL, **how)
        assert caught.value.error == "Overloaded", method
        assert f"of the {need + 4 * block} allowed are free" in caught.value.parameters["reason"]
    # Several together take turns.
    with ThreadPoolExecutor(4) as pool:
        assert {one["text"] for one in pool.map(lambda _n: generate(suite), range(8))} == {text}
    # Another model takes the place of an idle one; beside one at work there is none.
    assert generate(suite, model="other:1")["text"] != text
    assert [one["name"] for one in load(suite)["models"]] == ["other:1"]
    with suite.runtime() as client:
        how = {"model": "other:1", "prompt": "a", "max_tokens": 40, "temperature": 1.0}
        stream = client.stream(f"{RUNTIME}.Generate", **how)
        next(stream)
        os.kill(suite.processes["runtimed"].pid, signal.SIGSTOP)
        try:
            with suite.runtime() as other:
                other.send(f"{RUNTIME}.Generate", {"model": MODEL, "prompt": "a", "max_tokens": 5})
                os.kill(suite.processes["runtimed"].pid, signal.SIGCONT)
                try:
                    assert other.receive()["parameters"]["result"]
                except VarlinkFault as refused:
                    assert refused.error == "Overloaded"
                    assert "does not fit beside the models" in refused.parameters["reason"]
        finally:
            os.kill(suite.processes["runtimed"].pid, signal.SIGCONT)
        list(stream)
    assert load(suite)["used_bytes"] <= need + 4 * block


def first_model(suite: Any) -> dict[str, Any]:
    (model,) = load(suite)["models"]
    result: dict[str, Any] = model
    return result


def test_a_system_without_memory_is_told_and_survived(suites: Callable[..., Any]) -> None:
    suite = suites()
    generate(suite)
    with suite.runtime() as client:
        client.call(f"{RUNTIME}.UnloadModel", model=MODEL)
    pid = suite.processes["runtimed"].pid
    unlimited = resource.prlimit(pid, resource.RLIMIT_AS)
    # Room for what Python does, and not for the tables of a model.
    resource.prlimit(pid, resource.RLIMIT_AS, (status(suite, "VmSize") * 1024 + (2 << 20), unlimited[1]))
    error = fault(suite)
    assert error.error == "GenerationFailed"
    assert "memory" in error.parameters["reason"]
    assert load(suite)["models"] == []
    resource.prlimit(pid, resource.RLIMIT_AS, unlimited)
    text = generate(suite)["text"]
    # Now while it runs: a long text meets the limit, or has room in what there is; a short one does not care.
    resource.prlimit(pid, resource.RLIMIT_AS, (status(suite, "VmSize") * 1024 + 65536, unlimited[1]))
    try:
        generate(suite, prompt="y" * 3000, max_tokens=900)
    except VarlinkFault as refused:
        assert refused.error in ("GenerationFailed", "Overloaded")
        assert "memory" in refused.parameters["reason"]
    resource.prlimit(pid, resource.RLIMIT_AS, unlimited)
    assert generate(suite)["text"] == text


def test_a_loaded_model_costs_no_time_when_nobody_asks(suites: Callable[..., Any]) -> None:
    suite = suites("--threads", "2")
    generate(suite, max_tokens=100)
    pid = suite.processes["runtimed"].pid
    maps = Path(f"/proc/{pid}/maps").read_text()
    assert "_kernels" in maps
    assert not any(heavy in maps for heavy in ("numpy", "markupsafe")), "numpy and jinja2 serve no quantised model"

    def ticks() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def idle() -> bool:
        before = ticks()
        time.sleep(1)
        return ticks() - before <= 0.05 * os.sysconf("SC_CLK_TCK")

    until(idle, "never a second without work")


def test_threads_change_by_signal(suites: Callable[..., Any]) -> None:
    suite = suites()
    before = generate(suite, max_tokens=50)["text"]
    pid = suite.processes["runtimed"].pid
    (suite.root / "config" / "runtimed.toml").write_text("[daemon]\nthreads = 7\n")
    threads = len(os.listdir(f"/proc/{pid}/task"))
    os.kill(pid, signal.SIGHUP)
    until(lambda: len(os.listdir(f"/proc/{pid}/task")) > threads, "no more threads")
    assert generate(suite, max_tokens=50)["text"] == before


def test_batch_work_stands_still_when_the_host_asks(suites: Callable[..., Any]) -> None:
    suite = suites("--yield-sec", "600")
    expected = generate(suite, max_tokens=1000)["text"]
    pid = suite.processes["runtimed"].pid
    how = {"model": MODEL, "prompt": "abc", "max_tokens": 1000, "temperature": 1.0, "seed": 3}
    os.kill(pid, signal.SIGUSR1)
    with suite.runtime() as client:
        client.send(f"{RUNTIME}.Generate", {**how, "priority": "Batch"})
        until(lambda: load(suite)["available_slots"] == 3, "it does not wait")
        assert generate(suite, max_tokens=1000)["text"] == expected  # others go on
        assert load(suite)["available_slots"] == 3
    error = fault(suite, priority="Urgent")
    assert (error.error, error.parameters["parameter"]) == ("InvalidParameter", "priority")
    assert fault(suite, priority="EmergencyTriage").error == "PermissionDenied"
    assert decision_fault(suite, priority="Urgent").parameters["parameter"] == "priority"
    assert decision_fault(suite, priority="EmergencyTriage").error == "PermissionDenied"


def test_a_prompt_that_is_kept_is_not_read_again_by_the_next_process(
    suites: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("CACHE_DIRECTORY", str(cache))
    suite = suites()
    prompt = "a text that stays the same; " * 20
    plain = decide(suite, prompt)
    assert os.listdir(cache) == [], "only what is asked for is kept"
    assert decide(suite, prompt, keep_prompt=True) == plain
    assert len(os.listdir(cache)) == 1
    ask = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
    suite.processes["runtimed"].terminate()
    suite.processes["runtimed"].wait(60)
    suite.start("runtimed", RUNTIME)
    assert decide(suite, prompt, keep_prompt=True) == plain
    # All of its whole blocks are known, as they are to everybody who begins alike.
    [first, *_] = list(streamed(suite, ask))
    assert first["start"]["cached_tokens"] >= len(prompt) // 16 * 16 - 1
    suite.processes["runtimed"].terminate()
    suite.processes["runtimed"].wait(60)
    for file in cache.iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    suite.start("runtimed", RUNTIME)
    assert decide(suite, prompt, keep_prompt=True) == plain


def streamed(suite: Any, how: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with suite.runtime() as client:
        yield from client.stream(f"{RUNTIME}.Generate", **how)
