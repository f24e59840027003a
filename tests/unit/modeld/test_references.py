# SPDX-License-Identifier: Apache-2.0
"""References to models elsewhere, and what goes with a request for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.modeld import naming
from syntrop.modeld.pull import credentials, references
from syntrop.modeld.pull.faults import NotFound

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "kind", "name", "revision", "host", "quantization"),
    [
        ("smollm2", "library", "library/smollm2", "latest", "", ""),
        ("qwen2.5:0.5b", "library", "library/qwen2.5", "0.5b", "", ""),
        ("ollama:me/mine:v1", "library", "me/mine", "v1", "", ""),
        ("Org/Model-GGUF", "hub", "Org/Model-GGUF", "main", "", ""),
        ("hf:Org/Model:Q4_K_M", "hub", "Org/Model", "main", "", "Q4_K_M"),
        ("hf.co/Org/Model:Q8_0@v2", "hub", "Org/Model", "v2", "", "Q8_0"),
        ("oci:host.example:5000/a/b/c:tag", "registry", "a/b/c", "tag", "host.example:5000", ""),
        (f"oci:[::1]:80/a@{DIGEST}", "registry", "a", DIGEST, "[::1]:80", ""),
        ("https://host.example/a.gguf?x=1", "file", "https://host.example/a.gguf?x=1", "", "", ""),
    ],
)
def test_references(text: str, kind: str, name: str, revision: str, host: str, quantization: str) -> None:
    found = references.parse(text)
    assert (found.kind, found.name, found.revision) == (kind, name, revision)
    assert (found.host, found.quantization) == (host, quantization)


@given(st.text(max_size=60))
def test_whatever_passes_cannot_leave_its_path(text: str) -> None:
    try:
        found = references.parse(text)
    except NotFound:
        return
    if found.kind != "file":
        assert ".." not in found.name
        assert not set(found.name + found.revision + found.host) & set("?#% \\\n@")


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("https://a.example/x", True),
        ("https://a.example:8443", True),
        ("http://127.0.0.1:80/x", True),
        ("http://localhost/x", True),
        ("http://[::1]:8/x", True),
        ("http://a.example/x", False),
        ("http://127.0.0.1.example/x", False),
        ("http://localhost.example/x", False),
        ("https://u:p@a.example/x", False),
        ("https://a.example:99999/", False),
        ("https://a.example/x#y", False),
        ("https:///x", False),
        ("ftp://a.example/x", False),
        ("https://a.example/x y", False),
    ],
)
def test_addresses(url: str, good: bool) -> None:
    if good:
        references.check_url(url)
        return
    with pytest.raises(NotFound):
        references.check_url(url)


def test_which_file_a_quantization_means() -> None:
    paths = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m.Q8_0.gguf", "mmproj-m-f16.gguf", "m-IQ4_XS.gguf", "x.json"]
    assert references.choose_gguf(paths, "", "r") == ["m-Q4_K_M.gguf"]
    assert references.choose_gguf(paths, "q8_0", "r") == ["m.Q8_0.gguf"]
    assert references.choose_gguf(paths, "Q4_K_S", "r") == ["m-Q4_K_S.gguf"]
    for unknown in ("Q4_K", "Q4", "4_K_M", "F16"):
        with pytest.raises(NotFound):
            references.choose_gguf(paths, unknown, "r")
    shards = [f"big-Q4_0-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    assert references.choose_gguf([*shards, "big-Q8_0-00001-of-00001.gguf"], "", "r") == shards
    assert references.choose_gguf(["odd.gguf"], "", "r") == ["odd.gguf"]
    with pytest.raises(NotFound, match="no GGUF"):
        references.choose_gguf(["a.safetensors"], "", "r")


def test_credentials_are_a_hosts_own() -> None:
    known = credentials.parse("# ours\n\nA.example:5000 basic me pass:word\nb.example bearer token\n")
    assert known.header("a.example:5000") == "Basic bWU6cGFzczp3b3Jk"
    assert known.header("B.example") == "Bearer token"
    assert known.header("a.example") is None
    assert len(known) == 2
    for line in ("host", "host bearer", "host bearer a b", "host basic a:b c", "host magic x"):
        with pytest.raises(credentials.InvalidCredentials, match="line 2") as caught:
            credentials.parse("\n" + line)
        assert line not in str(caught.value)


def test_mirrors() -> None:
    mirrors = ["https://a/=https://b/c/", "https://x/=https://y/", "nonsense", "https://a/q=https://d/q"]
    assert references.mirrored("https://a/q/1", mirrors) == ["https://b/c/q/1", "https://d/q/1", "https://a/q/1"]


@given(st.text(max_size=200))
def test_a_derived_name_is_a_name(text: str) -> None:
    assert naming.is_name(naming.derive(text, "model"))
    assert naming.is_tag(naming.derive(text, "latest"))
