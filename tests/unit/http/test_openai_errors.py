# SPDX-License-Identifier: Apache-2.0
"""How engines' errors reach clients of OpenAI's dialect."""

from __future__ import annotations

import pytest

from syntrop.common.http import chat, openai
from syntrop.common.http.engine_request import engine_error
from syntrop.common.http.errors import HttpError, InternalFault
from syntrop.common.varlink.errors import InvalidParameter, VarlinkError

RUNTIME = "io.syntrop.Runtime1."


@pytest.mark.parametrize(
    ("error", "status", "code", "param", "retry"),
    [
        (VarlinkError(RUNTIME + "ModelNotFound", model="x"), 404, "model_not_found", "model", None),
        (
            VarlinkError(RUNTIME + "ContextExceeded", requested=9000, max=8192),
            400,
            "context_length_exceeded",
            "messages",
            None,
        ),
        (VarlinkError(RUNTIME + "InvalidParameter", parameter="top_k"), 400, "unsupported_value", "top_k", None),
        (InvalidParameter("stop"), 400, "unsupported_value", "stop", None),
        (VarlinkError(RUNTIME + "Overloaded", reason="4 of 4"), 429, "overloaded", None, None),
        (VarlinkError(RUNTIME + "Shutdown", reason="stop"), 503, "no_healthy_provider", None, None),
        (VarlinkError(RUNTIME + "GenerationFailed", reason="r"), 502, "provider_unavailable", None, "false"),
        (VarlinkError(RUNTIME + "PermissionDenied"), 502, "provider_unavailable", None, "false"),
        (VarlinkError("io.systemd.System", errno=5), 502, "provider_unavailable", None, "false"),
    ],
)
def test_what_an_engine_says_becomes_a_status(
    error: VarlinkError, status: int, code: str, param: str | None, retry: str | None
) -> None:
    failure = openai.failure(engine_error(error), started=False)
    assert (failure.status, failure.code, failure.param) == (status, code, param)
    headers = dict(failure.headers)
    assert headers.get("x-should-retry") == retry
    assert ("retry-after" in headers) is (status in (429, 503))


def test_errors_that_are_final() -> None:
    assert dict(openai.failure(chat.Unavailable("x"), started=True).headers) == {"x-should-retry": "false"}
    assert openai.failure(chat.EngineTimeout("x"), started=False).status == 504
    assert openai.failure(chat.Unfit("x"), started=False).status == 503
    fault = InternalFault("req_1")
    assert fault.status == 500 and "req_1" in fault.message
    assert HttpError(429, "x").type == "rate_limit_error"


def test_errors_name_the_field_of_their_route() -> None:
    failure = openai.failure(chat.ContextExceeded(9, 8), started=False, prompt="input")
    assert (failure.param, failure.code) == ("input", "context_length_exceeded")
    failure = openai.failure(chat.Unhonoured("messages[1].role", "no"), started=False, prompt="input")
    assert failure.param == "input[1].role" and failure.param in failure.message
    failure = openai.failure(chat.Refused("Wrong.", "stop", "bad"), started=False)
    assert (failure.status, failure.message, failure.param, failure.code) == (400, "Wrong.", "stop", "bad")
    assert openai.failure(chat.Refused("Wrong."), started=False).param is None
