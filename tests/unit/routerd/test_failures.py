# SPDX-License-Identifier: Apache-2.0
"""What the errors of providers mean, and that none of them shows a key."""

from __future__ import annotations

import json
from email.utils import formatdate
from time import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http import chat
from syntrop.common.http.client import Silent, TooMany
from syntrop.common.http.response import BadResponse
from syntrop.common.http.wire import Broken, Unreachable, Untrusted
from syntrop.routerd.providers.failures import Teller, retry_after

KEY = "sk-secret-0123456789"
MOST = "This model's maximum context length is 8192 tokens. "
TELLER = Teller("up", KEY)


def error(status: int, body: Any = b"", **headers: str) -> chat.EngineError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return TELLER.status(status, lambda name: headers.get(name.replace("-", "_")), data, "m")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": {"message": "bad", "param": "n", "code": "invalid_value"}}, chat.Refused),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "too big"}]}, chat.Refused),
        (413, b"", chat.Refused),
        (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}, chat.Denied),
        (403, {"error": {"message": f"{KEY} may not"}}, chat.Denied),
        (402, b"", chat.Denied),
        (429, {"error": {"message": "no quota", "code": "insufficient_quota"}}, chat.Denied),
        (
            404,
            {"error": {"message": "The model `m` does not exist", "code": "model_not_found"}},
            chat.ModelNotFound,
        ),
        (404, {"object": "error", "message": "The model `m` does not exist."}, chat.ModelNotFound),
        (404, {"error": "model 'm' not found"}, chat.ModelNotFound),
        (404, {"detail": "Not Found"}, chat.Denied),
        (404, b"<html>nginx</html>", chat.Denied),
        (405, {"detail": "Method Not Allowed"}, chat.Denied),
        (301, b"", chat.Denied),
        (307, b"", chat.Denied),
        (429, b"", chat.Overloaded),
        (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, chat.Overloaded),
        (503, b"loading", chat.Unavailable),
        (408, b"", chat.EngineTimeout),
        (504, b"", chat.EngineTimeout),
        (409, b"", chat.GenerationFailed),
        (500, {"error": {"message": f"boom with {KEY}"}}, chat.GenerationFailed),
        (502, b"\xff\xfe", chat.GenerationFailed),
        (204, b"", chat.GenerationFailed),
    ],
)
def test_statuses(status: int, body: Any, kind: type[chat.EngineError]) -> None:
    found = error(status, body, location=f"https://elsewhere/?key={KEY}")
    assert type(found) is kind
    assert KEY not in str(found) + repr(found) + found.message


def test_a_refusal_has_its_words() -> None:
    found = error(400, {"error": {"message": "n is \n too\tbig", "param": "n", "code": "invalid_value"}})
    assert isinstance(found, chat.Refused)
    assert (found.message, found.parameter, found.code) == (
        "up refuses the request: n is too big",
        "n",
        "invalid_value",
    )
    found = error(422, {"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "is none"}]})
    assert isinstance(found, chat.Refused) and found.parameter == "messages.0.role"
    assert len(error(400, {"error": {"message": "x" * 100_000}}).message) < 1100


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": MOST + "However, your messages resulted in 9000 tokens.", "code": "context_length"}},
        {"error": {"message": MOST + "However, you requested 9000 tokens (8000 in the messages, 1000 besides)."}},
        {"type": "error", "error": {"message": "prompt is too long: 9000 tokens > 8192 maximum"}},
        {"error": {"message": "x", "type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 8192}},
    ],
)  # fmt: skip
def test_contexts_that_are_exceeded(body: Any) -> None:
    found = error(400, body)
    assert isinstance(found, chat.ContextExceeded)
    assert (found.requested, found.most) == (9000, 8192)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "3"}, 3),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after_ms": "250"}, 0.25),
        ({"retry_after_ms": "250", "retry_after": "3"}, 0.25),
        ({"retry_after_ms": "soon", "retry_after": "3"}, 3),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry_after": "-1"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "1e9"}, None),
        ({"retry_after": "99999999999999999999"}, None),
        ({"retry_after": "whenever"}, None),
        ({"retry_after": ""}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_when_to_try_again(headers: dict[str, str], seconds: float | None, status: int) -> None:
    assert error(status, b"", **headers).retry_after == seconds


def test_when_to_try_again_as_a_date() -> None:
    found = retry_after({"retry-after": formatdate(time() + 3600, usegmt=True)}.get)
    assert found is not None and 3000 < found <= 3600


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Unreachable("refused"), chat.Unavailable),
        (Untrusted("self-signed"), chat.Unavailable),
        (TooMany("9 are in use"), chat.Overloaded),
        (Silent("nothing for 1 s"), chat.EngineTimeout),
        (Broken("reset"), chat.GenerationFailed),
        (BadResponse(f"what is no HTTP {KEY}"), chat.GenerationFailed),
    ],
)
def test_faults_of_transport(fault: Exception, kind: type[chat.EngineError]) -> None:
    found = TELLER.transport(fault)
    assert type(found) is kind and KEY not in found.message and found.message.startswith("up ")


@given(status=st.integers(200, 599), body=st.binary(max_size=40))
def test_every_answer_is_some_error(status: int, body: bytes) -> None:
    assert isinstance(error(status, body), chat.EngineError)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from(["error", "message", "code", "type", "param", "detail", "loc", "msg", "object", "status",
                         "n_ctx", "n_prompt_tokens"]), inner, max_size=3),
)  # fmt: skip


@given(status=st.integers(400, 599), body=anything)
def test_every_json_is_some_error(status: int, body: Any) -> None:
    assert isinstance(error(status, body), chat.EngineError)
    assert isinstance(TELLER.told(body, "m"), chat.EngineError)
