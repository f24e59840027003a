# SPDX-License-Identifier: Apache-2.0
"""What callers of `io.syntrop.Runtime1` give, checked where the interface's types cannot; and its errors.

A value that cannot be honoured is refused with an InvalidParameter that names it. Nothing is ignored.
"""

from __future__ import annotations

from syntrop.common.varlink.errors import VarlinkError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from syntrop.runtimed.sampler import Sampling
    from syntrop.runtimed.tokenizer import Tokenizer

INTERFACE = "io.syntrop.Runtime1."
_ROLES = ("system", "user", "assistant", "tool")
_STOPS_MAX = 64
_STOP_LENGTH_MAX = 4096
_DEPTH_MAX = 128  # objects in objects: templates and what goes through them recurse
_LOGPROBS_MAX = 20
_CANDIDATES_MAX = 256
_POOLINGS = ("mean", "cls", "last")
# What a template is given in any case: not to be replaced by what a caller thinks of.
_RESERVED = ("self", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token")


def invalid(parameter: str, reason: str) -> VarlinkError:
    return VarlinkError(INTERFACE + "InvalidParameter", parameter=parameter, reason=reason)


def failed(reason: str) -> VarlinkError:
    return VarlinkError(INTERFACE + "GenerationFailed", reason=reason)


def overloaded(reason: str) -> VarlinkError:
    return VarlinkError(INTERFACE + "Overloaded", reason=reason)


def not_found(model: str) -> VarlinkError:
    return VarlinkError(INTERFACE + "ModelNotFound", model=model)


def context_exceeded(requested: int, most: int) -> VarlinkError:
    return VarlinkError(INTERFACE + "ContextExceeded", requested=requested, max=most)


def refuse_unbuilt(**parameters: object) -> None:
    """What is published but not built must not be ignored."""
    for name, value in parameters.items():
        if value is not None:
            raise invalid(name, "not supported by this version")


class Chat:
    """A conversation, and what else its template is given."""

    __slots__ = ("messages", "tools", "variables")

    def __init__(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, variables: dict[str, Any]
    ) -> None:
        self.messages = messages
        self.tools = tools
        self.variables = variables


def chat(
    prompt: str | None,
    messages: list[dict[str, Any]] | None,
    tools: list[dict[str, Any]] | None,
    template_variables: str | None,
    prompt_ids: list[int] | None = None,
) -> Chat | None:
    """The conversation, or None where a prompt was given."""
    if sum(one is not None for one in (prompt, messages, prompt_ids)) != 1:
        raise invalid("prompt", "exactly one of prompt, prompt_ids and messages is to be given")
    if messages is None:
        if not prompt and not prompt_ids:
            raise invalid("prompt" if prompt_ids is None else "prompt_ids", "empty")
        for name, value in (("tools", tools), ("template_variables", template_variables)):
            if value is not None:
                raise invalid(name, "a prompt is taken as it is: only messages go through a template")
        return None
    _check_messages(messages)
    return Chat(messages, _tools(tools), _variables(template_variables))


def _check_messages(messages: list[dict[str, Any]]) -> None:
    if not messages:
        raise invalid("messages", "empty")
    for index, message in enumerate(messages):
        if message["role"] not in _ROLES:
            raise invalid(f"messages[{index}].role", f"none of {', '.join(_ROLES)}")
        if message.get("content") is None and not (message["role"] == "assistant" and message.get("tool_calls")):
            raise invalid(f"messages[{index}].content", "missing, and no calls of tools stand in its place")


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """As OpenAI's clients write them, which is what templates read."""
    if tools is None:
        return None
    result = []
    for index, tool in enumerate(tools):
        function = {"name": tool["name"]}
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        if tool.get("parameters") is not None:
            function["parameters"] = _object(tool["parameters"], f"tools[{index}].parameters")
        result.append({"type": "function", "function": function})
    return result


def _variables(text: str | None) -> dict[str, Any]:
    variables = {} if text is None else _object(text, "template_variables")
    for name in variables:
        if not name.isidentifier():
            raise invalid("template_variables", f"{name[:80]!r} is no name of a variable")
        if name in _RESERVED:
            raise invalid("template_variables", f"{name} is not to be replaced")
    return variables


def _object(text: str, parameter: str) -> dict[str, Any]:
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(parameter, f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid(parameter, "no JSON object")
    if _is_deep(value):
        raise invalid(parameter, f"nested deeper than {_DEPTH_MAX}")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEPTH_MAX + 1):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not inner:
            return False
        level = [item for items in inner for item in items]
    return True


def stops(stop: list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    if len(stop) > _STOPS_MAX:
        raise invalid("stop", f"more than {_STOPS_MAX} texts")
    if not all(0 < len(one) <= _STOP_LENGTH_MAX for one in stop):
        raise invalid("stop", f"a text that is empty or longer than {_STOP_LENGTH_MAX} characters")
    return tuple(stop)


def priority(name: str) -> int:
    """Its place among the engine's tiers."""
    from syntrop.common.authority import PRIORITIES

    if name not in PRIORITIES:
        raise invalid("priority", f"none of {', '.join(PRIORITIES)}")
    return PRIORITIES.index(name)


def top_logprobs(count: int | None) -> int | None:
    if count is not None and not 0 <= count <= _LOGPROBS_MAX:
        raise invalid("top_logprobs", f"{count} is not from 0 to {_LOGPROBS_MAX}")
    return count


def sampling(*, logit_bias: list[dict[str, Any]] | None, **parameters: Any) -> Sampling:
    from syntrop.runtimed.sampler import Sampling, SamplingError

    biases: dict[int, float] = {}
    for index, one in enumerate(logit_bias or ()):
        if one["token"] in biases:
            raise invalid(f"logit_bias[{index}].token", f"{one['token']} stands there twice")
        biases[one["token"]] = one["bias"]
    try:
        return Sampling(**parameters, logit_bias=biases)
    except SamplingError as error:
        raise invalid(error.parameter, error.reason) from None


def check_biases(how: Sampling, tokenizer: Tokenizer) -> None:
    for index, token in enumerate(how.logit_bias):
        if token >= len(tokenizer):
            raise invalid(f"logit_bias[{index}].token", f"{token} is not in the vocabulary of {len(tokenizer)}")


def candidates(given: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(name, text) of each."""
    if not 2 <= len(given) <= _CANDIDATES_MAX:
        raise invalid("candidates", f"{len(given)}, not from 2 to {_CANDIDATES_MAX}")
    seen: dict[str, set[str]] = {"name": set(), "token": set()}
    for index, one in enumerate(given):
        for field, known in seen.items():
            if not one[field]:
                raise invalid(f"candidates[{index}].{field}", "empty")
            if one[field] in known:
                raise invalid(f"candidates[{index}].{field}", f"{one[field][:80]!r} is another candidate's, too")
            known.add(one[field])
    return [(one["name"], one["token"]) for one in given]


def texts(
    text: str | None, many: list[str] | None, tokens: list[dict[str, Any]] | None
) -> tuple[str, Sequence[str | list[int]]]:
    """What to embed, and the name of the parameter that had it."""
    given = [name for name, one in (("text", text), ("texts", many), ("tokens", tokens)) if one is not None]
    if len(given) != 1:
        raise invalid("text", "exactly one of text, texts and tokens is to be given")
    if text is not None:
        if not text:
            raise invalid("text", "empty")
        return "text", [text]
    inputs: Sequence[str | list[int]] = many or [one["ids"] for one in tokens or ()]
    if not inputs:
        raise invalid(given[0], "empty")
    for index, one in enumerate(inputs):
        if not one:
            raise invalid(member(given[0], index), "empty")
    return given[0], inputs


def member(parameter: str, index: int) -> str:
    """What a text is called in an error."""
    return {"text": "text", "texts": f"texts[{index}]", "tokens": f"tokens[{index}].ids"}[parameter]


def pooling(name: str | None) -> str | None:
    if name is not None and name not in _POOLINGS:
        raise invalid("pooling", f"{name[:80]!r} is none of {', '.join(_POOLINGS)}")
    return name
