# SPDX-License-Identifier: Apache-2.0
"""The engine from the command line, under the activator: texts, vectors, what is in memory, and plain words for
what goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

MODEL = "smollm2:135m"
TIMEOUT = 120.0


def ctl(suite: Any, *arguments: str, given: str = "", status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "syntrop.ctl", *arguments],
        check=False,
        env={**suite.environment, "SYNTROP_RUN_ROOT": suite.root},
        input=given,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == status, done.stderr
    return done


def parsed(suite: Any, *arguments: str, given: str = "") -> Any:
    return json.loads(ctl(suite, *arguments, "--json", given=given).stdout)


def test_texts_are_continued_and_answered(stocked_suite: Any) -> None:
    def generate(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return ctl(stocked_suite, "generate", MODEL, *arguments, given=given)

    prompt = "The capital of France is"
    done = generate(prompt, "--max-tokens", "3", "--timing")
    assert done.stdout.startswith(" Paris.") and done.stdout.endswith("\n")
    assert "5 tokens read, 3 made" in done.stderr and "seed" in done.stderr
    # The end of a line that is piped is no part of the text; an option may stand before it.
    assert generate("--max-tokens", "3", given=prompt + "\n").stdout == done.stdout
    assert generate("--max-tokens", "3", prompt).stdout == done.stdout
    result = parsed(stocked_suite, "generate", MODEL, "--max-tokens=2", "--logprobs=1", prompt)
    assert result["text"] == " Paris."
    assert [one["text"] for one in result["logprobs"]] == [" Paris", "."]
    assert len(result["logprobs"][0]["top"]) == 1
    how = ("--temperature", "1.5", "--seed", "7", "--max-tokens", "8")
    texts = {parsed(stocked_suite, "generate", MODEL, prompt, *how)["text"] for _ in range(2)}
    assert len(texts) == 1
    answer = parsed(stocked_suite, "generate", MODEL, "Say hello.", "--system", "Be brief.", "--max-tokens", "30")
    assert answer["prompt_tokens"] > 15, "the template's own tokens are among them"
    stopped = generate("Count: 1, 2, 3, 4,", "--stop", "7", "--max-tokens", "40").stdout
    assert "7" not in stopped and "6" in stopped


def test_texts_become_vectors(stocked_suite: Any) -> None:
    texts = ["A man is eating food.", "A man is eating bread.", "The index is corrupt."]
    lines = ctl(stocked_suite, "embed", MODEL, *texts).stdout.splitlines()
    assert lines[0].startswith("576 dimensions")
    near = [float(line.split()[0]) for line in lines[1:]]
    assert near[0] == 1 and 1 > near[1] > near[2]
    rows = parsed(stocked_suite, "embed", MODEL, "--pooling", "mean", *texts)
    assert [row["text"] for row in rows] == texts
    assert all(len(row["vector"]) == 576 for row in rows)
    assert parsed(stocked_suite, "embed", MODEL, "--pooling=mean", given="\n".join(texts)) == rows
    assert "no text" in ctl(stocked_suite, "embed", MODEL, status=1).stderr


def test_what_is_in_memory(launch: Any, stocked_state: str) -> None:
    suite = launch(state=stocked_state, idle=30)
    assert "no model is in memory" in ctl(suite, "models", "loaded").stdout
    ctl(suite, "generate", MODEL, "a", "--max-tokens", "1")
    assert MODEL in ctl(suite, "models", "loaded").stdout
    (one,) = parsed(suite, "models", "loaded")
    assert one["name"] == MODEL and one["memory_bytes"] > 0
    assert "given back" in ctl(suite, "models", "unload", MODEL).stdout
    assert "is not in memory" in ctl(suite, "models", "unload", MODEL).stdout
    assert parsed(suite, "models", "loaded") == []


def test_what_goes_wrong_is_said_in_words(stocked_suite: Any) -> None:
    for arguments, said in (
        (("generate", "nonesuch", "a"), "no model 'nonesuch' in the store"),
        (("embed", "nonesuch", "a"), "no model 'nonesuch' in the store"),
        (("models", "unload", "nonesuch"), "no model 'nonesuch' in the store"),
        (("generate", MODEL, ""), "prompt: empty"),
        (("generate", MODEL, "a", "--temperature=-1"), "temperature: must be 0"),
        (("generate", MODEL, "a", "--max-tokens", "0"), "max_tokens: less than 1"),
        (("embed", MODEL, "word " * 9000), "the model has room for 8192"),
    ):
        error = ctl(stocked_suite, *arguments, status=1).stderr
        assert error.startswith("syntropctl: ") and said in error and error.count("\n") == 1, error


def test_nobody_there() -> None:
    for arguments in (("generate", MODEL, "a"), ("embed", MODEL, "a"), ("models", "loaded")):
        done = subprocess.run(
            [sys.executable, "-m", "syntrop.ctl", *arguments],
            check=False,
            env={**os.environ, "SYNTROP_RUN_ROOT": "/nowhere"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == 1
        assert "nobody serves /nowhere/syntrop/io.syntrop.Runtime1" in done.stderr
