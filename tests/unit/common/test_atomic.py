# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from syntrop.common import atomic


def test_content_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "state"
    old = os.umask(0o077)
    try:
        atomic.write(str(path), b"one", mode=0o644)
    finally:
        os.umask(old)
    assert path.read_bytes() == b"one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    atomic.write_text(str(path), "zwö")
    assert path.read_text() == "zwö"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["state"]


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    atomic.write_json(str(path), {"a": [1, None, "ü"]})
    assert json.loads(path.read_bytes()) == {"a": [1, None, "ü"]}
    with pytest.raises(ValueError, match="JSON"):
        atomic.write_json(str(path), float("nan"))
    assert json.loads(path.read_bytes()) == {"a": [1, None, "ü"]}


def test_a_reader_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "state"
    atomic.write(str(path), b"old")
    with path.open("rb") as reader:
        atomic.write(str(path), b"newer")
        assert reader.read() == b"old"


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "state").symlink_to("target")
    atomic.write(str(tmp_path / "state"), b"x")
    assert (tmp_path / "target").read_bytes() == b"precious"
    assert not (tmp_path / "state").is_symlink()


def test_data_is_synced_before_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, os.rename

    def spy_fsync(handle: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def spy_rename(*args: object, **kwargs: object) -> None:
        order.append("rename")
        rename(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "rename", spy_rename)
    atomic.write(str(tmp_path / "state"), b"x")
    assert order == ["file", "rename", "folder"]


@pytest.mark.parametrize("failing", ["write", "fsync", "rename", "fchmod"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    atomic.write(str(path), b"old")
    before = len(os.listdir("/proc/self/fd"))

    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(OSError, match="No space"):
            atomic.write(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]
    assert len(os.listdir("/proc/self/fd")) == before


def test_bad_paths(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic.write(str(tmp_path / "no" / "state"), b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        atomic.write(str(tmp_path / "folder"), b"")
    assert os.listdir(tmp_path) == ["folder"]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        atomic.write(str(tmp_path / "file" / "state"), b"")


def test_a_long_name_and_a_relative_path_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    atomic.write("n" * 255, b"x")
    assert (tmp_path / ("n" * 255)).read_bytes() == b"x"
