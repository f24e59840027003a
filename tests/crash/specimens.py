# SPDX-License-Identifier: Apache-2.0
"""Ways to replace a file, right and wrong: what the laboratory must be able to tell apart."""

from __future__ import annotations

import os

NEW, OLD = b"new" * 1000, b"old" * 1000


def replace_well(root: str) -> None:
    _replace(root, sync_file=True, sync_folder=True)


def replace_without_file_sync(root: str) -> None:
    _replace(root, sync_file=False, sync_folder=True)


def replace_without_folder_sync(root: str) -> None:
    _replace(root, sync_file=True, sync_folder=False)


def replace_in_place(root: str) -> None:
    handle = os.open(os.path.join(root, "file"), os.O_WRONLY)
    os.pwrite(handle, NEW, 0)
    os.fsync(handle)
    os.close(handle)


def replace_by_removal(root: str) -> None:
    os.unlink(os.path.join(root, "file"))
    replace_well(root)


def _replace(root: str, *, sync_file: bool, sync_folder: bool) -> None:
    path = os.path.join(root, "file")
    handle = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    view = memoryview(NEW)
    while view:
        view = view[os.write(handle, view) :]
    if sync_file:
        os.fsync(handle)
    os.close(handle)
    os.rename(path + ".tmp", path)
    if sync_folder:
        folder = os.open(root, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def prepare(root: str) -> None:
    with open(os.path.join(root, "file"), "wb") as file:
        file.write(OLD)


def check(root: str, acked: tuple[str, ...]) -> None:
    with open(os.path.join(root, "file"), "rb") as file:
        content = file.read()
    assert content in (OLD, NEW), "neither old nor new"
    assert content == NEW or not acked, "lost"
