# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.modeld import naming

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "name", "tag"),
    [
        ("smollm2", "smollm2", None),
        ("smollm2:135m", "smollm2", "135m"),
        ("Qwen2.5-Coder_0.5B:q4_K.m", "Qwen2.5-Coder_0.5B", "q4_K.m"),
        ("a" * 128 + ":" + "b" * 64, "a" * 128, "b" * 64),
        ("7:8", "7", "8"),
    ],
)
def test_names(text: str, name: str, tag: str | None) -> None:
    parsed = naming.parse(text)
    assert (parsed.name, parsed.tag, parsed.digest) == (name, tag, None)
    assert str(parsed) == text


def test_digests() -> None:
    parsed = naming.parse(f"sha256:{HEX}")
    assert (parsed.name, parsed.tag, parsed.digest) == ("", None, HEX)
    assert str(parsed) == f"sha256:{HEX}"
    assert naming.parse_digest(f"sha256:{HEX}") == HEX
    with pytest.raises(naming.InvalidIdentifier):
        naming.parse_digest("smollm2:135m")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "a:",
        ":a",
        "a:b:c",
        "a/b",
        "a:b/c",
        "../a",
        "..",
        "a..b",
        "a:..",
        ".a",
        "-a",
        "_a",
        "a:.b",
        "a\0",
        "a\n",
        "a:b\n",
        "a b",
        "a\x7f",
        "ä",
        "\uff11",
        "a" * 129,
        "a:" + "b" * 65,
        "sha256",
        "sha256:",
        "sha256:latest",
        f"sha256:{HEX[:-1]}",
        f"sha256:{HEX}0",
        f"sha256:{HEX.upper()}",
        f"sha256:{HEX}\n",
    ],
)
def test_what_no_model_is_called(text: str) -> None:
    with pytest.raises(naming.InvalidIdentifier) as caught:
        naming.parse(text)
    assert caught.value.identifier == text


@given(st.text(max_size=200))
def test_whatever_passes_is_safe_as_a_path(text: str) -> None:
    try:
        parsed = naming.parse(text)
    except naming.InvalidIdentifier:
        return
    for part in (parsed.name, parsed.tag or "", parsed.digest or ""):
        assert part.isascii()
        assert part.isprintable()
        assert not set(part) & set("/\0 :")
        assert not part.startswith((".", "-"))
        assert ".." not in part
        assert len(part) <= 128


@pytest.mark.parametrize(
    ("tags", "chosen"),
    [([], None), (["x"], "x"), (["x", "y"], None), (["x", "latest"], "latest"), (["latest"], "latest")],
)
def test_the_tag_of_a_bare_name(tags: list[str], chosen: str | None) -> None:
    assert naming.choose_tag(tags) == chosen
