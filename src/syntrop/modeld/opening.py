# SPDX-License-Identifier: Apache-2.0
"""Sources that are given by path, as far as the daemon itself may read them. Everything here blocks."""

from __future__ import annotations

import os

from syntrop.modeld.faults import Unsuitable

# Neither a FIFO nor a device may hold us up; both are refused once they are open.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def file(path: str) -> int:
    """Raises OSError."""
    return os.open(path, _FLAGS)


def tree(path: str) -> dict[str, int]:
    """A file, or the files of a folder that may belong to a model, by their paths below it. Raises Unsuitable."""
    from syntrop.modeld import folder, manifest

    opened: dict[str, int] = {}
    try:
        if not os.path.isdir(path):
            return {"": file(path)}
        for base, folders, files in os.walk(path):
            below = os.path.relpath(base, path)
            folders[:] = [one for one in folders if not one.startswith(".")] if below.count("/") < 2 else []
            for name in files:
                place = name if below == "." else f"{below}/{name}"
                if folder.is_wanted(place):
                    if len(opened) == manifest.FILES_MAX:
                        raise Unsuitable(f"more than {manifest.FILES_MAX} files")
                    opened[place] = file(os.path.join(base, name))
        if not opened:
            raise Unsuitable("no safetensors or GGUF file in it")
    except OSError as error:
        close(opened)
        raise Unsuitable(error.strerror or str(error)) from None
    except BaseException:
        close(opened)
        raise
    return opened


def close(opened: dict[str, int]) -> None:
    for handle in opened.values():
        os.close(handle)
