# SPDX-License-Identifier: Apache-2.0
"""The command line as it is read: texts stand where people put them."""

from __future__ import annotations

import pytest

from syntrop.ctl.commands import parsed


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ("m a b", ["a", "b"]),
        ("m --json a b", ["a", "b"]),
        ("m a --json b", ["a", "b"]),
        ("--json m a", ["a"]),
        ("m --json -- -a --json", ["-a", "--json"]),
        ("m -- -a", ["-a"]),
        ("m --pooling mean a", ["a"]),
        ("m", []),
    ],
)
def test_texts_to_embed(words: str, texts: list[str]) -> None:
    options = parsed(["embed", *words.split()])
    assert (options.model, options.texts) == ("m", texts)


@pytest.mark.parametrize(
    ("words", "prompt"),
    [
        ("m a", "a"),
        ("m --chat a", "a"),
        ("--chat m a", "a"),
        ("m --seed 3 -- -a", "-a"),
        ("m -- -a", "-a"),
        ("m -", "-"),
        ("m --json -", "-"),
        ("m --stop x --stop y a", "a"),
        ("m --json", None),
    ],
)
def test_a_text_to_continue(words: str, prompt: str | None) -> None:
    options = parsed(["generate", *words.split()])
    assert (options.model, options.prompt) == ("m", prompt)


@pytest.mark.parametrize(
    "words",
    ["generate m a b", "generate m --none", "embed m --none a", "embed m --none", "status a b", "ask a b c"],
)
def test_what_nobody_asked_for_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(words.split())
    assert caught.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


def test_a_command_under_the_suite() -> None:
    options = parsed(["up", "--quiet", "--", "make", "--", "-k"])
    assert (options.quiet, options.command) == (True, ["make", "--", "-k"])
