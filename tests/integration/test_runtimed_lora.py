# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters through the daemon: what goes with one, what does not, and who keeps it in memory."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
UNIT = HERE.parent / "unit" / "runtimed"


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


engine: Any = _module("engine_lora", HERE / "test_runtimed_engine.py")
archmodel: Any = _module("archmodel_lora_i", UNIT / "archmodel.py")
runtimed, RUNTIME, MODEL = engine.runtimed, engine.RUNTIME, engine.MODEL
CANDIDATES = [{"name": "a", "token": "xy"}, {"name": "b", "token": "z"}]
LONG = "to be read once " * 8  # several blocks of the prefix cache


def adapter_file(path: Path, model: Path, name: str, **keys: Any) -> Path:
    from syntrop.common.gguf import parse

    tensors = parse(model.read_bytes()).tensors.values()
    base = {
        one.name: one.shape for one in tensors if one.name.startswith("blk.") and len(one.shape) == 2
    }  # the embedding stays as it is
    path.write_bytes(archmodel.adapter("llama", base, name=name, alpha=40.0, **keys))
    return path


@pytest.fixture
def suites(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made = []

    def make(*options: str) -> Any:
        suite = runtimed.Suite(*options)
        made.append(suite)
        base = engine.tiny_file(tmp_path / "tiny.gguf")
        suite.register(base, MODEL)
        for name in ("one", "two"):
            suite.register(adapter_file(tmp_path / f"{name}.gguf", base, name), f"{name}:lora")
        return suite

    yield make
    for suite in made:
        suite.stop()


def text(suite: Any, prompt: str = LONG) -> str:
    result: str = engine.generate(suite, prompt, temperature=0.0, max_tokens=40)["text"]
    return result


def call(suite: Any, method: str, **parameters: Any) -> dict[str, Any]:
    with suite.runtime() as client:
        result: dict[str, Any] = client.call(f"{RUNTIME}.{method}", **parameters)
        return result


def attach(suite: Any, lora: str, model: str = MODEL) -> list[str]:
    result: list[str] = call(suite, "AttachLora", model=model, lora=lora)["fused_tensors"]
    return result


def everything(suite: Any) -> tuple[Any, ...]:
    """All that a model says, greedily."""
    decision = call(suite, "Decide", model=MODEL, prompt=LONG, candidates=CANDIDATES)["result"]
    return text(suite), decision, call(suite, "Embed", model=MODEL, text=LONG)["embedding"]


def settled(suite: Any) -> int:
    call(suite, "CompactKvCache")
    result: int = engine.load(suite)["used_bytes"]
    return result


def test_it_changes_what_is_said_and_leaves_no_trace(suites: Callable[..., Any]) -> None:
    suite = suites()
    plain = everything(suite)
    alone, files = settled(suite), engine.descriptors(suite)
    tensors = attach(suite, "one:lora")
    assert len(tensors) == 2 * 7 and "blk.1.ffn_down.weight" in tensors
    # The base's prefixes are in memory, and are not for the adapter; nor the other way round, in any order.
    adapted = everything(suite)
    assert all(a != b for a, b in zip(adapted, plain, strict=True))
    (model,) = engine.load(suite)["models"]
    assert model["lora"] == "one:lora"
    assert settled(suite) > alone
    attach(suite, "two")
    other = everything(suite)
    assert all(len({str(x) for x in three}) == 3 for three in zip(plain, adapted, other, strict=True))
    attach(suite, "one:lora")
    assert everything(suite) == adapted
    assert call(suite, "DetachLora", model=MODEL) == {}
    assert everything(suite) == plain
    engine.until(lambda: settled(suite) == alone, "adapters stay in memory")
    assert "lora" not in engine.load(suite)["models"][0]
    engine.until(lambda: engine.descriptors(suite) <= files, "descriptors leak")
    # Unloading drops it, too.
    attach(suite, "one:lora")
    assert call(suite, "UnloadModel", model=MODEL)["freed_bytes"] > alone
    assert engine.load(suite)["used_bytes"] == 0
    assert call(suite, "DetachLora", model=MODEL) == {}
    assert everything(suite) == plain


def test_what_has_started_ends_as_it_began(suites: Callable[..., Any]) -> None:
    suite = suites()
    how = {
        "model": MODEL,
        "prompt": LONG,
        "max_tokens": 3000,
        "temperature": 0.0,
        "logit_bias": [{"token": 256, "bias": -100.0}],
    }
    plain = call(suite, "Generate", **how)["result"]["text"]
    attach(suite, "one:lora")
    adapted = call(suite, "Generate", **how)["result"]["text"]
    alone = settled(suite)
    with suite.runtime() as first, suite.runtime() as second, suite.runtime() as third:
        before = first.stream(f"{RUNTIME}.Generate", **how)
        next(before)
        call(suite, "DetachLora", model=MODEL)
        after = second.stream(f"{RUNTIME}.Generate", **how)
        next(after)
        attach(suite, "two:lora")
        hung = third.stream(f"{RUNTIME}.Generate", **how)
        next(hung)
        attach(suite, "one:lora")
        third.socket.close()
        assert list(before)[-1]["result"]["text"] == adapted
        assert list(after)[-1]["result"]["text"] == plain
    assert call(suite, "Generate", **how)["result"]["text"] == adapted
    engine.until(lambda: settled(suite) == alone, "the adapter of a call that hung up stays in memory")


def test_callers_who_hang_up_leave_one_adapter_or_none(suites: Callable[..., Any]) -> None:
    suite = suites()
    plain = text(suite)
    alone, files = settled(suite), engine.descriptors(suite)
    stop = threading.Event()

    def streams() -> None:
        while not stop.is_set():
            with suite.runtime() as client:
                how = {"model": MODEL, "prompt": LONG, "max_tokens": 500, "temperature": 1.0}
                next(client.stream(f"{RUNTIME}.Generate", **how))

    threads = [threading.Thread(target=streams) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(40):
            with suite.runtime() as client:
                method, given = ("AttachLora", {"lora": "one:lora"}) if number % 3 else ("DetachLora", {})
                client.send(f"{RUNTIME}.{method}", {"model": MODEL, **given})
                if number % 2:
                    client.receive()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    # An attachment whose caller left may still be on its way; after another one it is not.
    engine.until(lambda: engine.load(suite)["available_slots"] == 4, "a generation outlived its caller")

    def gone() -> bool:
        call(suite, "DetachLora", model=MODEL)
        return settled(suite) == alone and engine.descriptors(suite) <= files

    engine.until(gone, "adapters or descriptors leak")

    def bare() -> bool:
        # An attachment that was still on its way may have come behind the detaching above.
        call(suite, "DetachLora", model=MODEL)
        return text(suite) == plain

    engine.until(bare, "an adapter cannot be taken off again")


def test_what_cannot_be_attached_is_named(suites: Callable[..., Any], tmp_path: Path) -> None:
    suite = suites()
    plain = text(suite)
    alone, files = settled(suite), engine.descriptors(suite)
    bad = {
        "other:1": adapter_file(
            tmp_path / "o", tmp_path / "tiny.gguf", "o", general__architecture="qwen2"
        ).read_bytes(),
        "wide:1": archmodel.adapter("llama", {"blk.0.attn_q.weight": (32, 128)}),
        MODEL: None,
    }
    for name, data in bad.items():
        if data is not None:
            (tmp_path / "bad.gguf").write_bytes(data)
            suite.register(tmp_path / "bad.gguf", name)
        error = runtimed.fault(suite, "AttachLora", model=MODEL, lora=name)
        assert (error.error, error.parameters["parameter"]) == ("InvalidParameter", "lora"), name
        assert name in error.parameters["reason"]
    error = runtimed.fault(suite, "AttachLora", model=MODEL, lora="")
    assert error.parameters["parameter"] == "lora"
    error = runtimed.fault(suite, "AttachLora", model=MODEL, lora="nonesuch:1")
    assert (error.error, error.parameters) == ("ModelNotFound", {"model": "nonesuch:1"})
    error = runtimed.fault(suite, "AttachLora", model="nonesuch:1", lora="one:lora")
    assert (error.error, error.parameters) == ("ModelNotFound", {"model": "nonesuch:1"})
    assert runtimed.fault(suite, "DetachLora", model="nonesuch:1").error == "ModelNotFound"
    assert runtimed.fault(suite, "Generate", model="one:lora", prompt="a").error == "GenerationFailed"
    suite.register(runtimed.tiny_encoder(tmp_path / "bert.gguf"), "tiny:bert")
    error = runtimed.fault(suite, "AttachLora", model="tiny:bert", lora="one:lora")
    assert error.parameters["parameter"] == "model"
    call(suite, "UnloadModel", model="tiny:bert")
    # One that was right before goes on where another is refused.
    attach(suite, "one:lora")
    adapted = text(suite)
    assert runtimed.fault(suite, "AttachLora", model=MODEL, lora="wide:1").error == "InvalidParameter"
    assert text(suite) == adapted != plain
    call(suite, "DetachLora", model=MODEL)
    engine.until(lambda: settled(suite) == alone, "what was refused stays in memory")
    engine.until(lambda: engine.descriptors(suite) <= files, "descriptors leak")


def test_a_model_with_an_adapter_stays(suites: Callable[..., Any], tmp_path: Path) -> None:
    suite = suites("--models-max", "1")
    suite.register(engine.tiny_file(tmp_path / "other.gguf", seed=2), "other:1")
    attach(suite, "one:lora")
    adapted = text(suite)
    error = engine.fault(suite, model="other:1")
    assert (error.error, "at work or have adapters" in error.parameters["reason"]) == ("Overloaded", True)
    assert text(suite) == adapted
    call(suite, "DetachLora", model=MODEL)
    assert engine.generate(suite, model="other:1")["completion_tokens"]


def test_the_budget_counts_it(suites: Callable[..., Any], tmp_path: Path) -> None:
    first = suites()
    text(first, "abc")
    need = settled(first)
    attach(first, "one:lora")
    adapter = settled(first) - need
    assert adapter > 10_000
    size = os.stat(tmp_path / "one.gguf").st_size
    tight = suites("--memory-max", str(need + min(size, adapter) - 1))
    plain = text(tight, "abc")
    error = runtimed.fault(tight, "AttachLora", model=MODEL, lora="one:lora")
    assert (error.error, "one:lora does not fit" in error.parameters["reason"]) == ("Overloaded", True)
    assert settled(tight) == need
    assert text(tight, "abc") == plain


def test_the_daemon_stays_for_it(tmp_path: Path) -> None:
    suite = runtimed.Suite(idle=0.5)
    try:
        base = engine.tiny_file(tmp_path / "tiny.gguf")
        suite.register(base, MODEL)
        suite.register(adapter_file(tmp_path / "one.gguf", base, "one"), "one:lora")
        process = suite.start("runtimed", RUNTIME, idle=0.5)
        attach(suite, "one:lora")
        with pytest.raises(runtimed.subprocess.TimeoutExpired):
            process.wait(3)
        call(suite, "DetachLora", model=MODEL)
        assert process.wait(60) == 0
    finally:
        suite.stop()
