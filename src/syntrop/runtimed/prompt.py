# SPDX-License-Identifier: Apache-2.0
"""From what a caller gives, a text or a conversation, to the tokens that a model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.common.http.thinking import PAIRS
from syntrop.runtimed.chat_template import ChatTemplate, TemplateError, TemplateLacks, template_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from syntrop.runtimed.tokenizer import Tokenizer

_MAY_GO_UNREAD = ("name", "tool_calls")  # fields of messages that not every template has a place for


class PromptTooLong(Exception):
    """The prompt leaves no room in the context. `requested` counts its tokens and one more.

    A text that is too long by far is not cut up to be counted: then `requested` is the least it can be.
    """

    def __init__(self, requested: int, most: int) -> None:
        super().__init__(f"{requested} tokens, {most} fit")
        self.requested = requested
        self.most = most


def text_tokens(tokenizer: Tokenizer, text: str, context: int) -> list[int]:
    """Tokens of a text as it is, control tokens that it spells included. Raises PromptTooLong."""
    return _fitting(tokenizer, text, "", context)


def chat_tokens(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    context: int,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Tokens of a conversation, ready for the assistant's turn. Raises TemplateError and PromptTooLong."""
    return chat_prompt(tokenizer, template, messages, context, tools, variables)[0]


def chat_prompt(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    context: int,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> tuple[list[int], bool]:
    """Tokens of a conversation, ready for the assistant's turn, and whether its template has opened a thought.
    `tools` as OpenAI's clients write them.

    Control tokens are read in the template's own text only: a message, a tool or a variable that spells one is
    just text. Nothing is passed over in silence. Raises TemplateError, TemplateLacks and PromptTooLong.
    """
    if tools or variables:
        template.check(tools=bool(tools), variables=variables or {})
    given = {"messages": template_messages(messages), "tools": tools or None, **(variables or {})}
    texts: list[str] = []
    _each_string(given, texts.append)
    guarded, mark = tokenizer.guard(texts)
    if mark:
        remaining = iter(guarded)
        given = _each_string(given, lambda _text: next(remaining))
    text = template.render(**given)
    for field in _MAY_GO_UNREAD:
        if any(one.get(field) and one.get("role") != "tool" for one in given["messages"]):
            _check_read(template, given, text, field)
    tokens = _fitting(tokenizer, text, mark, context)
    # Many templates write the begin token themselves.
    if tokens[:2] == [tokenizer.bos] * 2:
        del tokens[0]
    return tokens, text.rstrip().endswith(tuple(opening for opening, _ in PAIRS))


def _check_read(template: ChatTemplate, given: Mapping[str, Any], text: str, field: str) -> None:
    """Raises TemplateLacks where a field of messages changes nothing in what the template wrote."""
    bare = [
        one if one.get("role") == "tool" else {key: value for key, value in one.items() if key != field}
        for one in given["messages"]
    ]
    try:
        unread = template.render(**{**given, "messages": bare}) == text
    except TemplateError:
        return  # it cannot do without
    if unread:
        raise TemplateLacks("messages", f"the model's chat template has no place for a message's {field}")


def _fitting(tokenizer: Tokenizer, text: str, mark: str, context: int) -> list[int]:
    least = tokenizer.at_least(len(text) - text.count(mark) if mark else len(text))
    if least >= context:
        raise PromptTooLong(least + 1, context)
    tokens = tokenizer.encode(text, mark=mark)
    if len(tokens) >= context:
        raise PromptTooLong(len(tokens) + 1, context)
    return tokens


def _each_string(value: Any, change: Callable[[str], Any]) -> Any:
    """The same value with `change(text)` in the place of each text in it, names of fields included, in order."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_each_string(one, change) for one in value]
    if isinstance(value, dict):
        return {_each_string(key, change): _each_string(one, change) for key, one in value.items()}
    return value
