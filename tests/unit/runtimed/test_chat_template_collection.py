# SPDX-License-Identifier: Apache-2.0
"""Every template of llama.cpp's collection, against jinja2 set up as transformers sets it up."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Template
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from syntrop.runtimed import template_sandbox
from syntrop.runtimed.chat_template import ChatTemplate, TemplateError, TemplateLacks, template_messages

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Wetter <einer> "Stadt"',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Käse & Co."},
                    "days": {"type": "integer", "enum": [1, 2], "description": "z"},
                    "where": {
                        "type": "array",
                        "items": {"type": "string", "description": "x"},
                        "description": "y",
                    },
                },
                "required": ["city"],
            },
        },
    }
]
CALL = {"id": "call_4fX2hQ9", "name": "get_weather", "arguments": '{"city": "Kyïv", "days": 2}'}
USER, ANSWER = {"role": "user", "content": "wieviel <ü>?"}, {"role": "assistant", "content": "zwölf\n"}
NEXT = {"role": "user", "content": "und?"}
PARTS = [{"type": "text", "text": text} for text in ("wie", "viel?")]
CASES: dict[str, dict[str, Any]] = {
    "one": {"messages": [USER]},
    "several": {"messages": [{"role": "system", "content": "kurz!"}, USER, ANSWER, NEXT]},
    "finished": {"messages": [USER, ANSWER], "add_generation_prompt": False},
    "tools": {"messages": [USER], "tools": TOOLS},
    "calls": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "sonnig", "tool_call_id": CALL["id"], "name": "get_weather"},
        ],
        "tools": TOOLS,
    },
    "thinking": {"messages": [USER], "enable_thinking": True, "thinking": True, "reasoning_effort": "low"},
    "not thinking": {
        "messages": [USER, {**ANSWER, "reasoning_content": "hm"}, NEXT],
        "enable_thinking": False,
        "thinking": False,
    },
    "documents": {"messages": [USER], "documents": [{"title": "T", "text": "D", "doc_id": "1", "content": "D"}]},
    "parts": {"messages": [{"role": "user", "content": PARTS}]},
}  # fmt: skip
# What their authors did not mean them to write.
REFUSED = {("google-gemma-2-2b-it", "several"), ("google-gemma-2-2b-it", "calls")}
# These have no place for calls of tools, and two of them none for what comes of a call.
NO_CALLS = {
    "HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct",
}  # fmt: skip
NO_RESULTS = {"llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct"}


class Generation(Extension):
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def plain_environment() -> ImmutableSandboxedEnvironment:
    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def raise_exception(message: str) -> None:
        raise JinjaError(message)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: f"now as {form}"
    return made


def plainly(template: Template, given: dict[str, Any]) -> str | None:
    """None where it fails: not every template takes every form of a conversation."""
    everything = {"tools": None, "documents": None, "add_generation_prompt": True, **given}
    try:
        return template.render(bos_token="<s>", eos_token="</s>", **everything)
    except (JinjaError, TypeError, ValueError, RecursionError):
        return None


@pytest.fixture(scope="module")
def templates(llama_cpp_models: Path) -> Iterator[dict[str, tuple[ChatTemplate, Template]]]:
    found = sorted((llama_cpp_models / "templates").glob("*.jinja"))
    assert len(found) == 70
    plain = plain_environment()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template_sandbox, "_strftime_now", lambda form: f"now as {form}")
        yield {
            path.stem: (ChatTemplate(source, bos="<s>", eos="</s>"), plain.from_string(source))
            for path in found
            for source in [path.read_text()]
        }


@pytest.mark.parametrize("case", CASES)
def test_every_template(case: str, templates: dict[str, tuple[ChatTemplate, Template]]) -> None:
    given = CASES[case] | {"messages": template_messages(CASES[case]["messages"])}
    for name, (template, plain) in templates.items():
        before = copy.deepcopy(given)
        if (name, case) in REFUSED:
            with pytest.raises(TemplateError, match=r"not supported|must alternate"):
                template.render(**given)
            continue
        text = template.render(**given)
        assert given == before, name
        expected = plainly(plain, given)
        if case not in ("parts", "calls"):
            assert expected is None or text == expected, name
        for message in given["messages"]:
            for part in ("wie", "viel?") if case == "parts" else (message["content"],):
                if part and not (message["role"] == "tool" and name in NO_RESULTS):
                    assert part.strip() in text, (name, part)
        if case == "parts":
            assert "'text'" not in text and '"text":' not in text, name
        if case == "calls":
            assert name in NO_CALLS or "Kyïv" in text or "Ky\\u00efv" in text, name
            assert text.count("None") <= template.render([USER], tools=TOOLS).count("None"), name


def test_tools_are_refused_where_they_would_go_unread(templates: dict[str, tuple[ChatTemplate, Template]]) -> None:
    lacking = set()
    for name, (template, _) in templates.items():
        try:
            template.check(tools=True, variables={})
        except TemplateLacks as error:
            assert error.parameter == "tools"
            lacking.add(name)
        shown = "get_weather" in template.render([USER], tools=TOOLS)
        assert (name not in lacking) == shown, name
    assert "microsoft-Phi-3.5-mini-instruct" in lacking and len(lacking) < len(templates) / 2


def test_thinking_is_refused_where_it_cannot_be_switched(
    templates: dict[str, tuple[ChatTemplate, Template]],
) -> None:
    told = {True: {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"},
            False: {"enable_thinking": False, "thinking": False}}  # fmt: skip
    for name, (template, _) in templates.items():
        refused = []
        for wanted, variables in told.items():
            try:
                template.check(tools=False, variables=variables)
            except TemplateLacks as error:
                assert error.parameter == "template_variables"
                refused.append(wanted)
        assert len(refused) < 2, f"{name} either thinks or does not"
        if refused:
            texts = {template.render([USER], **variables) for variables in told.values()}
            assert len(texts) == 1, f"{name} can be switched"
    with pytest.raises(TemplateLacks, match="reads no x"):
        template.check(tools=False, variables={"x": None})
