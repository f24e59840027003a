# SPDX-License-Identifier: Apache-2.0
"""What is behind a reference: the registry's manifest or the hub's listing, as files with addresses. Blocks."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit

from syntrop.common import modelfiles
from syntrop.modeld import folder, naming
from syntrop.modeld.pull import references
from syntrop.modeld.pull.faults import NotFound, Unavailable
from syntrop.modeld.pull.references import Reference

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.modeld.pull.transport import Transport

MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_TITLE = "org.opencontainers.image.title"
_MODEL = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


class RemoteFile:
    """A file that can be fetched; digest and size where the source states them."""

    __slots__ = ("digest", "path", "size", "url")

    def __init__(self, path: str, url: str, digest: str | None, size: int | None) -> None:
        self.path = path
        self.url = url
        self.digest = digest
        self.size = size


class Found:
    """The files of a model, and what it may be called."""

    __slots__ = ("files", "name", "tag")

    def __init__(self, name: str, tag: str, files: list[RemoteFile]) -> None:
        self.name = name
        self.tag = tag
        self.files = files


def resolve(transport: Transport, text: str, *, hub: str, library: str, format: str, quantization: str) -> Found:
    """Raises NotFound, Unavailable and Cancelled. `hub` and `library` are addresses without a last slash."""
    reference = references.parse(text)
    if reference.kind == references.FILE:
        return _file(reference)
    if reference.kind == references.HUB:
        return _hub(transport, reference, hub, format, reference.quantization or quantization)
    base = library if reference.kind == references.LIBRARY else _registry(reference.host)
    return _artifact(transport, reference, base)


def _file(reference: Reference) -> Found:
    name = unquote(urlsplit(reference.text).path.rpartition("/")[2]) or "model"
    path = name if modelfiles.is_weights(name) and folder.is_wanted(name) else "model.gguf"
    return Found(
        naming.derive(name.rpartition(".")[0] or name, "model"),
        naming.LATEST,
        [RemoteFile(path, reference.text, None, None)],
    )


def _registry(host: str) -> str:
    return f"{'http' if references.is_local(host) else 'https'}://{host}"


def _artifact(transport: Transport, reference: Reference, base: str) -> Found:
    """A registry's manifest: the distribution API of OCI."""
    manifest = _manifest(transport, reference, base, reference.revision)
    if isinstance(manifest.get("manifests"), list):
        for row in manifest["manifests"]:
            if isinstance(row, dict) and _DIGEST.fullmatch(str(row.get("digest"))):
                manifest = _manifest(transport, reference, base, row["digest"])
                break
    layers = manifest.get("layers")
    if not isinstance(layers, list):
        raise NotFound(reference.text, "its manifest has no layers")
    files = []
    for layer in layers:
        if not isinstance(layer, dict) or not _DIGEST.fullmatch(str(layer.get("digest"))):
            raise Unavailable(base, "its manifest has a layer without a digest")
        titles = layer.get("annotations")
        title = titles.get(_TITLE) if isinstance(titles, dict) else None
        if layer.get("mediaType") == _MODEL:
            title = "model.gguf" if not isinstance(title, str) else title
        if not isinstance(title, str) or not folder.is_wanted(title):
            continue  # a template, parameters, a licence's text: what the model file says of itself is used
        size = layer.get("size")
        url = f"{base}/v2/{reference.name}/blobs/{layer['digest']}"
        files.append(RemoteFile(title, url, layer["digest"], size if type(size) is int else None))
    weights = [one for one in files if modelfiles.is_weights(one.path)]
    if not weights:
        raise NotFound(reference.text, "it has no layer that is a GGUF or safetensors file")
    if all(one.path.endswith(".gguf") for one in weights):
        files = weights
    tag = reference.revision if _DIGEST.fullmatch(reference.revision) is None else naming.LATEST
    name = naming.derive(reference.name.rpartition("/")[2], "model")
    return Found(name, naming.derive(tag, naming.LATEST), files)


def _manifest(transport: Transport, reference: Reference, base: str, revision: str) -> dict[str, Any]:
    url = f"{base}/v2/{reference.name}/manifests/{revision}"
    digest = revision if _DIGEST.fullmatch(revision) else ""
    value = transport.json(url, ", ".join(MANIFESTS), reference.text, digest)
    if not isinstance(value, dict):
        raise Unavailable(url, "its manifest is not an object")
    return value


def _hub(transport: Transport, reference: Reference, hub: str, format: str, quantization: str) -> Found:
    """A repository's listing, and of it the files of one model, at the commit that the listing is of."""
    url = f"{hub}/api/models/{reference.name}/revision/{quote(reference.revision, safe='')}?blobs=true"
    listing = transport.json(url, "application/json", reference.text)
    rows = listing.get("siblings") if isinstance(listing, dict) else None
    if not isinstance(rows, list):
        raise Unavailable(url, "its answer lists no files")
    listed = [row for row in rows if isinstance(row, dict) and isinstance(row.get("rfilename"), str)]
    there = {row["rfilename"]: row for row in listed}
    paths = [path for path in there if folder.is_wanted(path)]
    if format == "safetensors":
        try:
            _, chosen = folder.choose(path for path in paths if not path.endswith(".gguf"))
        except folder.Incomplete as error:
            raise NotFound(reference.text, str(error)) from None
        tag = naming.LATEST
    else:
        chosen = references.choose_gguf(paths, quantization, reference.text)
        tag = naming.derive(quantization, naming.LATEST) if quantization else naming.LATEST
    commit = listing.get("sha")
    commit = commit if isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{40,64}", commit) else reference.revision
    files = []
    for path in chosen:
        large = there[path].get("lfs")
        digest = large.get("sha256") or large.get("oid") if isinstance(large, dict) else None
        digest = f"sha256:{str(digest).removeprefix('sha256:')}" if digest else None
        size = there[path].get("size")
        files.append(
            RemoteFile(
                path,
                f"{hub}/{reference.name}/resolve/{quote(commit, safe='')}/{quote(path)}",
                digest if digest and _DIGEST.fullmatch(digest) else None,
                size if type(size) is int else None,
            )
        )
    return Found(naming.derive(reference.name.rpartition("/")[2].removesuffix("-GGUF"), "model"), tag, files)
