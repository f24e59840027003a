# SPDX-License-Identifier: Apache-2.0
"""The root folders that machines boot: Debian releases with the suite installed, built once and cached.

A machine's root is an overlay of layers, each cached by a hash of what it is made from:

    release   mmdebstrap's minimal root with systemd, D-Bus and polkit, and no compiler
    builder   what a build needs over that (never booted)
    prefix    what `units/install.sh` makes of this tree, built in the builder, and its activation
    client    a virtual environment with the `openai` package

The cache may vanish at any time; without it a test run takes minutes more. It lies outside the tree, in
`$XDG_CACHE_HOME/syntrop`. A code change rebuilds the prefix from the last one, in seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from machine import Bind, MachineError, run_in_layers

TREE = Path(__file__).resolve().parents[2]
BASE_PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "polkitd",
    "libnss-systemd",
    "python3",
    "curl",
    "iproute2",
    "ca-certificates",
)
BUILD_PACKAGES = (
    "gcc",
    "libc6-dev",
    "python3-dev",
    "python3-venv",
    "pkg-config",
    "libsystemd-dev",
    "libnss-systemd",
)
CLIENT_PACKAGES = ["openai>=1.60"]
# What decides about the prefix: the package, its build, and everything that install.sh places.
INPUTS = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src", "units", "docs/generate.py")
KEPT_PREFIXES = 3


@dataclass(frozen=True)
class Release:
    """A Debian release that the suite supports, and what it brings."""

    name: str
    python: str
    systemd: int


TRIXIE = Release("trixie", "3.13", 257)
BOOKWORM = Release("bookworm", "3.11", 252)


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "syntrop"


def digest(*parts: str | bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:16]


def tree_digest() -> str:
    """Hash of all inputs of the prefix, without what builds leave in the tree."""
    parts: list[str | bytes] = []
    for name in INPUTS:
        top = TREE / name
        files = [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file())
        for path in files:
            if "__pycache__" in path.parts or path.suffix in {".so", ".o", ".pyc"}:
                continue
            if path.name.endswith((".idl.json", "_kernels.c", "_confine.c")) or ".egg-info" in str(path):
                continue
            parts += [str(path.relative_to(TREE)), path.read_bytes()]
    return digest(*parts)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One builder at a time for each kind of layer, across processes."""
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built(name: str, make: Callable[[Path], None]) -> Path:
    """The cached folder `name`, made under another name first: a half-made layer is never found."""
    with locked(name):
        target = cache() / name
        if target.is_dir():
            os.utime(target)
            return target
        partial = cache() / f"{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        make(partial)
        partial.rename(target)
        return target


def mirror() -> str:
    """The mirror that the host itself uses."""
    for refresh in (False, True):
        if refresh:
            subprocess.run(["apt-get", "update", "-qq"], check=True)
        listed = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=True
        ).stdout.split()
        plain = [address for address in listed if "security" not in address]
        if plain:
            return max(set(plain), key=plain.count)
    raise MachineError("the host's apt knows no mirror")


def release_layer(release: Release) -> Path:
    def make(target: Path) -> None:
        if shutil.which("mmdebstrap") is None:
            raise MachineError("mmdebstrap is missing; apt-get install mmdebstrap")
        excluded = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
        done = subprocess.run(
            [
                "mmdebstrap",
                "--mode=root",
                "--variant=minbase",
                f"--include={','.join(BASE_PACKAGES)}",
                *(f"--dpkgopt=path-exclude={path}" for path in excluded),
                '--aptopt=Acquire::Languages "none"',
                release.name,
                str(target),
                f"deb {mirror()} {release.name} main",
            ],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise MachineError(f"mmdebstrap {release.name}:\n{done.stderr}")

    return built(f"release-{release.name}-{digest('2', *BASE_PACKAGES)}", make)


def network() -> tuple[list[Bind], dict[str, str]]:
    """How pip and apt in a root reach what the host's reach: its configuration, lent while a layer is built."""
    binds: list[Bind] = []
    lent = [Path("/etc/resolv.conf"), Path("/etc/hosts"), Path("/etc/pip.conf"), Path("/etc/xdg/pip")]
    lent += [Path("/etc/ssl/certs/ca-certificates.crt")]
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    for word in re.findall(r"(?:file://)?(/[^\s'\"]+)", re.sub(r"https?://\S+", "", configured)):
        # A local index keeps its files beside its pages.
        lent.append(Path(word).parent if Path(word).name == "simple" else Path(word))
    seen: set[Path] = set()
    for path in sorted(lent):
        path = path.resolve() if path.name == "resolv.conf" else path
        if path.exists() and not any(parent in seen for parent in (path, *path.parents)):
            seen.add(path)
            binds.append((str(path), "/etc/resolv.conf" if path.name == "resolv.conf" else str(path), True))
    env = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_")
        or name.lower().endswith("_proxy")
        or name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
    }
    for option in ("index-url", "extra-index-url"):
        found = re.search(rf"^global\.{option}='(.*)'$", configured, re.MULTILINE)
        if found:
            env.setdefault(f"PIP_{option.replace('-', '_').upper()}", found[1])
    return binds, env


def builder_layers(release: Release) -> list[Path]:
    base = release_layer(release)

    def make(target: Path) -> None:
        binds, env = network()
        run_in_layers(
            [base],
            "apt-get update -qq && apt-get install -y -qq --no-install-recommends " + " ".join(BUILD_PACKAGES),
            upper=target,
            binds=binds,
            env={**env, "DEBIAN_FRONTEND": "noninteractive"},
        )

    return [built(f"builder-{base.name}-{digest('2', *BUILD_PACKAGES)}", make), base]


def prefix_family(release: Release) -> str:
    return f"prefix-{release.name}-{digest(builder_layers(release)[0].name)}"


def build_tools(release: Release) -> Path:
    """What install.sh keeps between builds (its BUILD_ENV)."""
    return cache() / f"tools-{prefix_family(release)}"


def prefix_layers(release: Release) -> list[Path]:
    """The suite, installed and activated: two layers, topmost first."""
    builder = builder_layers(release)
    family = prefix_family(release)
    tools = build_tools(release)

    def make(target: Path) -> None:
        files, changes = target / "files", target / "changes"
        earlier = newest(f"{family}-*")
        files.mkdir()
        if earlier is not None:
            # The environment alone, so that pip has little to fetch. Units are laid anew: the earlier ones may be
            # those of another tree.
            (files / "usr/lib").mkdir(parents=True)
            environment = "usr/lib/syntrop"
            copy = ["cp", "-a", "--reflink=auto", str(earlier / "files" / environment), str(files / environment)]
            subprocess.run(copy, check=True)
        changes.mkdir()
        tools.mkdir(exist_ok=True)
        binds, env = network()
        run_in_layers(
            builder,
            "/src/units/install.sh install",
            binds=[*binds, (str(TREE), "/src", True), (str(files), "/out", False), (str(tools), "/tools", False)],
            env={**env, "DESTDIR": "/out", "BUILD_ENV": "/tools", "PIP_CACHE_DIR": "/tools/cache"},
        )
        run_in_layers(
            [files, *builder[1:]],
            "/src/units/install.sh activate",
            upper=changes,
            binds=[(str(TREE), "/src", True)],
        )

    with locked(family):  # the tools are shared by all of a family
        layer = built(f"{family}-{tree_digest()}", make)
        prune(f"{family}-*", keep=KEPT_PREFIXES)
    return [layer / "changes", layer / "files"]


def newest(pattern: str) -> Path | None:
    found = [path for path in cache().glob(pattern) if path.is_dir() and path.suffix != ".partial"]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def prune(pattern: str, *, keep: int) -> None:
    """Forget the oldest layers of a family; those used within the hour may carry a running machine."""
    found = [path for path in cache().glob(pattern) if path.is_dir() and path.suffix != ".partial"]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    fresh = found[0].stat().st_mtime - 3600 if found else 0
    for path in found[keep:]:
        if path.stat().st_mtime < fresh:
            shutil.rmtree(path)
            (cache() / f"{path.name}.lock").unlink(missing_ok=True)


def client_layer(release: Release) -> Path:
    """`/opt/client/bin/python3` with the packages that a user of the HTTP surface would have."""
    builder = builder_layers(release)

    def make(target: Path) -> None:
        (target / "opt/client").mkdir(parents=True)
        binds, env = network()
        run_in_layers(
            builder,
            "python3 -m venv /opt/client && /opt/client/bin/pip install -q --no-cache-dir "
            + " ".join(f"'{package}'" for package in CLIENT_PACKAGES),
            binds=[*binds, (str(target / "opt/client"), "/opt/client", False)],
            env=env,
        )

    return built(f"client-{release.name}-{digest(builder[0].name, *CLIENT_PACKAGES)}", make)


class Roots:
    """All layers of a release, built in the background when asked early."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self._layers: list[Path] = []
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._build, name=f"roots {self.release.name}")
            self._thread.start()

    def _build(self) -> None:
        try:
            base = release_layer(self.release)
            client = client_layer(self.release)
            self._layers = [*prefix_layers(self.release), client, base]
        except (MachineError, OSError, subprocess.SubprocessError) as error:
            self._error = error

    def layers(self) -> list[Path]:
        """The layers of a machine, topmost first. Raises MachineError with what the build printed."""
        self.start()
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise MachineError(f"the {self.release.name} root could not be built") from self._error
        return self._layers
