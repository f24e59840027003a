# SPDX-License-Identifier: Apache-2.0
"""schemathesis reads `/openapi.json` of a running router and asks what the document allows, and what it does not.

The same requests each time: nothing is drawn at random.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode

_spec = importlib.util.spec_from_file_location("routerd_process", Path(__file__).with_name("test_routerd.py"))
assert _spec and _spec.loader
process: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(process)

EXAMPLES = 12  # of each operation, and of each kind
MODEL = "alpha:1"
CHECKS = (
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


@pytest.fixture(scope="module")
def router() -> Iterator[Any]:
    router = process.Router()
    try:
        router.start_double()
        yield router
    finally:
        router.close()


@pytest.fixture(scope="module")
def schema(router: Any) -> Any:
    load_all_checks()
    status, headers, document = router.request("GET", "/openapi.json")
    assert (status, headers["content-type"]) == (200, "application/json")
    return schemathesis.openapi.from_dict(document, config=SchemathesisConfig(seed=1))


def named(case: Any, number: int) -> None:
    """Of what is valid, most is for a model that there is, and by somebody who may ask so."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str) and number % 4:
        case.body["model"] = MODEL
    if number % 4 and case.headers.get("x-syntrop-tier") == "triage":
        del case.headers["x-syntrop-tier"]


# What the engine says: thoughts, text in pieces, a call.
TALK = json.dumps(
    [
        ["say", "<think>"],
        ["say", "hm"],
        ["say", "</think>"],
        ["say", "Hel"],
        ["say", "lo ü"],
        ["say", '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'],
    ]
)


def bodies(document: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """The document's example, whole and streamed; and where a chat is asked for, with a talkative engine."""
    (example,) = document["components"]["schemas"][name]["examples"]
    example = {**example, "model": MODEL}
    whole = {field: value for field, value in example.items() if field != "stream_options"}
    for stream in (False, True):
        if name not in ("ResponseRequest", "MessageRequest", "ChatRequest", "OllamaChatRequest"):
            streams = name in ("CompletionRequest", "OllamaGenerateRequest")
            yield {**whole, "stream": stream} if streams else whole
            continue
        asked = {**(example if stream else whole), "stream": stream}
        yield asked
        prompt = "input" if name == "ResponseRequest" else "messages"
        yield {**asked, prompt: [*asked[prompt], {"role": "user", "content": TALK}]}


def test_the_document_s_own_examples(router: Any, schema: Any) -> None:
    """Each is answered, and the answer is as it is told."""
    checks = schemathesis.checks.CHECKS.get_by_names(list(CHECKS))
    document = router.request("GET", "/openapi.json")[2]
    asked = []
    for result in schema.get_all_operations():
        operation = result.ok()
        definition = document["paths"][operation.path][operation.method]
        if "requestBody" not in definition:
            given = [{}]
        else:
            (content,) = definition["requestBody"]["content"].values()
            name = content["schema"]["$ref"].rpartition("/")[2]
            given = [{"body": body, "media_type": "application/json"} for body in bodies(document, name)]
        for how in given:
            if "{id}" in operation.path:
                how["path_parameters"] = {"id": MODEL}
            case = operation.Case(**how)
            url = f"http://127.0.0.1:{router.port}"
            response = case.call_and_validate(base_url=url, checks=checks, timeout=60)
            expected = 501 if "501" in definition["responses"] else 200
            assert response.status_code == expected, (operation.label, how, response.text)
            asked.append(operation.label)
    assert set(asked) == {f"{way.upper()} {path}" for path, ways in document["paths"].items() for way in ways}


@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.name.lower())
def test_the_document_and_the_router_agree(router: Any, schema: Any, mode: GenerationMode) -> None:
    checks = schemathesis.checks.CHECKS.get_by_names(list(CHECKS))
    answered: Counter[int] = Counter()
    with requests.Session() as session:
        for result in schema.get_all_operations():
            operation = result.ok()
            if mode is GenerationMode.NEGATIVE and not (operation.body or operation.headers):
                continue  # nothing that could be wrong
            strategy = operation.as_strategy(generation_mode=mode)
            count = 0

            @hypothesis.settings(
                max_examples=EXAMPLES,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[hypothesis.Phase.generate],
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(strategy)
            def ask(case: Any) -> None:
                nonlocal count
                count += 1
                if mode is GenerationMode.POSITIVE:
                    named(case, count)
                response = case.call_and_validate(
                    base_url=f"http://127.0.0.1:{router.port}", session=session, checks=checks, timeout=60
                )
                answered[response.status_code] += 1

            ask()
    if mode is GenerationMode.NEGATIVE:
        assert not any(status < 400 for status in answered), answered
    assert not any(status >= 500 and status != 501 for status in answered), answered
    assert router.request("GET", "/health")[2]["status"] == "ok"
