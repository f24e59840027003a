# SPDX-License-Identifier: Apache-2.0
"""Prompts on disk: the same bits after a reload, nothing for another model, nothing of a file that is torn."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.gguf import parse
from syntrop.runtimed import prefixes
from syntrop.runtimed.model.kv import BLOCK, Budget, ffi
from syntrop.runtimed.model.llama import LlamaModel
from syntrop.runtimed.prefixes import Prefixes

_spec = importlib.util.spec_from_file_location("tinymodel_p", Path(__file__).with_name("tinymodel.py"))
assert _spec is not None and _spec.loader is not None
tinymodel: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tinymodel)

VOCABULARY = 64
DATA = tinymodel.Tiny(layers=2, vocab=VOCABULARY, context=256).file()
TEXT = [(7 * number + number // 5) % VOCABULARY for number in range(3 * BLOCK + 5)]


@pytest.fixture
def kept(tmp_path: Path) -> Prefixes:
    return Prefixes(str(tmp_path))


@pytest.fixture
def loaded() -> Iterator[Any]:
    yield (one := load())
    one.model.close()


def load(digest: str = "sha256:1", budget: Budget | None = None) -> Any:
    model = LlamaModel.load(parse(DATA), DATA, threads=1)
    if budget is not None:
        model.kv.join(budget)
    return SimpleNamespace(model=model, digest=digest)


def read(loaded: Any, tokens: list[int]) -> tuple[int, bytes]:
    """How many tokens were known, and the bits of the logits after the last one."""
    with loaded.model.sequence(200) as sequence:
        known = sequence.adopt(tokens)
        logits = loaded.model.forward(sequence, tokens[known:])
        return known, bytes(ffi.buffer(logits, VOCABULARY * 4))


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_what_was_kept_is_known_after_a_reload_to_the_bit(kept: Prefixes, loaded: Any, tmp_path: Path) -> None:
    known, computed = read(loaded, TEXT)
    assert known == 0
    kept.keep(loaded, TEXT)
    assert kept.restore(loaded, TEXT)
    again = load()
    assert Prefixes(str(tmp_path)).restore(again, TEXT)
    assert again.model.kv.blocks == 3
    known, found = read(again, TEXT)
    assert known == 3 * BLOCK
    assert computed == found
    # Blocks that no sequence holds leave as others do.
    again.model.kv.budget.compact()
    assert again.model.kv.blocks == again.model.kv.budget.used == 0
    kept.restore(again, TEXT)
    assert read(again, TEXT)[0] == 3 * BLOCK
    again.model.close()
    assert [one.stat().st_mode & 0o777 for one in files(tmp_path)] == [0o600]


def test_it_is_for_one_model_text_and_build(kept: Prefixes, loaded: Any, tmp_path: Path) -> None:
    read(loaded, TEXT)
    kept.keep(loaded, TEXT)
    for other, text in ((load("sha256:2"), TEXT), (load(), [*TEXT[:-1], 63]), (load(), TEXT[:-BLOCK])):
        assert not kept.restore(other, text)
        assert other.model.kv.blocks == 0
        other.model.close()
    other = Prefixes(str(tmp_path))
    other._build += " of tomorrow"
    again = load()
    assert not other.restore(again, TEXT)
    assert again.model.kv.blocks == 0
    again.model.close()


@given(st.data())
def test_a_file_that_is_not_whole_is_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    kept, loaded = Prefixes(str(folder)), load()
    _, computed = read(loaded, TEXT)
    kept.keep(loaded, TEXT)
    loaded.model.kv.budget.compact()
    [file] = files(folder)
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        file.write_bytes(whole[:at])
    else:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :])
    assert not kept.restore(loaded, TEXT)
    assert loaded.model.kv.blocks == 0
    assert read(loaded, TEXT)[1] == computed
    loaded.model.close()


def test_what_is_not_known_or_too_short_or_too_long_is_not_kept(
    kept: Prefixes, loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.keep(loaded, TEXT)
    read(loaded, TEXT[: BLOCK - 1])
    kept.keep(loaded, TEXT[: BLOCK - 1])
    monkeypatch.setattr(prefixes, "TOKENS_MAX", 2 * BLOCK)
    read(loaded, TEXT)
    kept.keep(loaded, TEXT)
    assert files(tmp_path) == []
    kept.keep(loaded, TEXT[: 2 * BLOCK])
    assert len(files(tmp_path)) == 1


def test_a_part_that_is_known_is_not_put_there_twice(kept: Prefixes, loaded: Any) -> None:
    read(loaded, TEXT)
    kept.keep(loaded, TEXT)
    again = load()
    known, _ = read(again, TEXT[: 2 * BLOCK])
    assert (known, again.model.kv.blocks) == (0, 2)
    kept.restore(again, TEXT)
    assert again.model.kv.blocks == 3
    kept.restore(again, TEXT)
    assert again.model.kv.blocks == 3
    again.model.close()


def test_memory_bounds_what_comes_back(kept: Prefixes, loaded: Any) -> None:
    read(loaded, TEXT)
    kept.keep(loaded, TEXT)
    size = loaded.model.kv.block_bytes
    small = load(budget=Budget(2 * size))
    kept.restore(small, TEXT)
    assert small.model.kv.budget.used <= 2 * size
    small.model.kv.budget.compact()
    assert small.model.kv.blocks == 0
    small.model.close()
    idle = load(budget=Budget(10 * size, idle_max=size))
    kept.restore(idle, TEXT)
    assert idle.model.kv.blocks == 1
    assert read(idle, TEXT[: 2 * BLOCK])[0] == BLOCK
    idle.model.close()


def test_the_folder_is_bounded_and_the_least_recently_used_goes_first(
    kept: Prefixes, loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "FILES_MAX", 3)
    texts = [[number, *TEXT] for number in range(5)]
    places = [Path(kept._path(loaded, text)) for text in texts]
    (tmp_path / ".1.x.tmp").write_bytes(b"half")
    for age, text in enumerate(texts[:3], 1):
        read(loaded, text)
        kept.keep(loaded, text)
        os.utime(places[age - 1], ns=(age, age))
    loaded.model.kv.budget.compact()
    kept.restore(loaded, texts[0])  # and so it is the newest
    for text in texts[3:]:
        read(loaded, text)
        kept.keep(loaded, text)
    assert set(files(tmp_path)) == {places[0], *places[3:]}
    monkeypatch.setattr(prefixes, "BYTES_MAX", places[0].stat().st_size * 2)
    read(loaded, texts[1])
    kept.keep(loaded, texts[1])
    assert len(files(tmp_path)) == 2 and places[1] in files(tmp_path)


def test_without_room_on_the_disk_all_works_and_is_told_once(
    loaded: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = Prefixes(str(tmp_path / "gone"))
    _, computed = read(loaded, TEXT)
    kept.keep(loaded, TEXT)
    kept.keep(loaded, TEXT)
    assert not kept.restore(loaded, TEXT)
    assert read(loaded, TEXT)[1] == computed
    assert capfd.readouterr().err.count("cannot be kept") == 1
