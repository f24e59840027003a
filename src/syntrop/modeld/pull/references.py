# SPDX-License-Identifier: Apache-2.0
"""What a reference to a model means, and which of a source's files are it. Pure.

| reference | means |
| --- | --- |
| `name`, `name:tag`, `namespace/name:tag` after `ollama:` | a model of the library, a registry of its own kind |
| `organisation/repository`, with `hf:` or not, `:QUANT` or `@revision` behind it | a model of the hub |
| `oci:host[:port]/repository[:tag]`, or `@sha256:…` | an artifact of any registry |
| `https://…` | one file; `http://` only on this machine |
"""

from __future__ import annotations

import re

from syntrop.modeld.pull.faults import NotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LIBRARY, HUB, REGISTRY, FILE = "library", "hub", "registry", "file"
# In the order in which they are taken when nobody says: small enough, and hardly worse than the original.
QUANTIZATIONS = (
    "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q5_K_M", "Q5_K_S", "Q5_0", "IQ4_XS", "IQ4_NL", "Q6_K", "Q8_0", "Q3_K_M",
    "Q3_K_L", "Q2_K", "F16", "BF16", "F32",
)  # fmt: skip

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.))*"
_NAME = re.compile(rf"({_PART}(?:/{_PART}){{0,5}})(?::({_PART}))?(?:@({_PART}|sha256:[0-9a-f]{{64}}))?", re.ASCII)
_HOST = re.compile(rf"({_PART}(?::\d{{1,5}})?|\[[0-9a-fA-F:]+\](?::\d{{1,5}})?)/(.+)", re.ASCII)
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.ASCII)
_URL = re.compile(r"(https?)://(\[[0-9a-fA-F:]+\]|[^/\s?#:@\[\]]+)(?::(\d{1,5}))?(/[^\s#]*)?", re.ASCII)
_LOOPBACK = re.compile(r"127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\]|localhost", re.ASCII)
LENGTH_MAX = 2048


class Reference:
    """A parsed reference. `host` is empty where the settings name it; `revision` is a tag, branch or digest."""

    __slots__ = ("host", "kind", "name", "quantization", "revision", "text")

    def __init__(
        self, text: str, kind: str, name: str, revision: str = "", host: str = "", quantization: str = ""
    ) -> None:
        self.text = text
        self.kind = kind
        self.name = name
        self.revision = revision
        self.host = host
        self.quantization = quantization


def parse(text: str) -> Reference:
    """Raises NotFound for what cannot be a reference."""
    if len(text) > LENGTH_MAX or not text.isprintable():
        raise NotFound(text[:200], "not a reference")
    if text.startswith(("https://", "http://")):
        check_url(text)
        return Reference(text, FILE, text)
    prefix, colon, rest = text.partition(":")
    if colon and prefix == "oci":
        host = _HOST.fullmatch(rest)
        name, tag, pin = _match(text, host[2] if host else "")
        return Reference(text, REGISTRY, name, pin or tag or "latest", host[1] if host else "")
    if colon and prefix == "ollama":
        name, tag, pin = _match(text, rest)
        return Reference(text, LIBRARY, name if "/" in name else f"library/{name}", pin or tag or "latest")
    if text.startswith("hf.co/"):
        text = text.removeprefix("hf.co/")
    elif colon and prefix == "hf":
        text = rest
    name, tag, pin = _match(text, text)
    if "/" not in name:
        return Reference(text, LIBRARY, f"library/{name}", pin or tag or "latest")
    if name.count("/") != 1 or pin.startswith("sha256:"):
        raise NotFound(text, "a model of the hub is called organisation/repository")
    return Reference(text, HUB, name, pin or "main", quantization=tag)


def _match(text: str, name: str) -> tuple[str, str, str]:
    found = _NAME.fullmatch(name)
    if found is None:
        raise NotFound(text, "none of name:tag, organisation/repository, oci:host/name:tag, https://address")
    return found[1], found[2] or "", found[3] or ""


def check_url(url: str) -> tuple[str, str]:
    """The scheme and the authority (host and port) of an address that we may go to. Raises NotFound.

    Plain http is for this machine only: elsewhere anybody on the way could put another model in.
    """
    found = _URL.fullmatch(url)
    if found is None or not url.isprintable():
        raise NotFound(url[:200], "not an address that can be fetched")
    scheme, host, port, _ = found.groups()
    if scheme == "http" and not _LOOPBACK.fullmatch(host):
        raise NotFound(url[:200], "plain http is for this machine only; use https")
    if port and int(port) > 65535:
        raise NotFound(url[:200], "no such port")
    return scheme, host.lower() + (f":{port}" if port else "")


def mirrored(url: str, mirrors: Iterable[str]) -> list[str]:
    """The address on every mirror that has it, then its own. A mirror is `PREFIX=PREFIX`."""
    found = []
    for mirror in mirrors:
        origin, equals, other = mirror.partition("=")
        if equals and url.startswith(origin):
            found.append(other + url.removeprefix(origin))
    return [*found, url]


def is_local(authority: str) -> bool:
    """Whether a host, with or without a port, is this machine by its name."""
    host = authority if authority.endswith("]") else authority.rpartition(":")[0] or authority
    return _LOOPBACK.fullmatch(host) is not None


def choose_gguf(paths: Iterable[str], wanted: str, reference: str) -> list[str]:
    """The file, or all shards, of the quantization wanted, or of the first in our order. Raises NotFound."""
    found = sorted(path for path in paths if path.lower().endswith(".gguf") and "mmproj" not in path.lower())
    if not found:
        raise NotFound(reference, "it has no GGUF file; format safetensors may be there")
    for one in (wanted,) if wanted else QUANTIZATIONS:
        named = [path for path in found if _names(path, one)]
        if named:
            return _whole(named, found)
    if wanted:
        there = ", ".join(path.rpartition("/")[2] for path in found)[:300]
        raise NotFound(reference, f"it has no {wanted}; there are {there}")
    return _whole(found, found)


def _names(path: str, quantization: str) -> bool:
    """Whether a file's name has the quantization as a word of its own: Q4_K is not in Q4_K_M."""
    pattern = rf"(?<![A-Z0-9]){re.escape(quantization.upper())}(?![A-Z0-9]|_[A-Z0-9])"
    return re.search(pattern, path.upper()) is not None


def _whole(named: list[str], all_of_them: list[str]) -> list[str]:
    first = min(named, key=lambda path: (path.count("/"), len(path), path))
    shard = _SHARD.fullmatch(first)
    if shard is None:
        return [first]
    return [
        path
        for path in all_of_them
        if (other := _SHARD.fullmatch(path)) and (other[1], other[3]) == (shard[1], shard[3])
    ]
