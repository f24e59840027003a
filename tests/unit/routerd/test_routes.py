# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from syntrop.common.http.errors import HttpError
from syntrop.routerd import ingress
from syntrop.routerd.routes import ROUTES, route


def test_paths() -> None:
    assert route("HEAD", "/") == ("root", "")
    assert route("GET", "/health") == ("health", "")
    assert route("HEAD", "/v1/models") == ("models", "")
    assert route("GET", "/v1/models/a%2fb%3Ac%C3%BC/d") == ("model", "a/b:cü/d")
    assert route("POST", "/v1/chat/completions") == ("chat", "")
    assert route("POST", "/api/chat") == ("ollama-chat", "")
    assert route("POST", "/v1/messages/count_tokens") == ("count-tokens", "")


def test_every_route_of_a_dialect_has_one() -> None:
    from syntrop.routerd import dialects

    looks = {"root", "health", "metrics", "models", "model", "unbuilt", "count-tokens", "openapi"}
    looks |= {*ingress._OLLAMA}
    for _, _, name in ROUTES:
        if name not in looks:
            assert dialects.find(name) is dialects.find(name)


def test_errors_have_the_shape_of_their_dialect() -> None:
    from syntrop.routerd import dialects

    error = HttpError(429, "full", code="overloaded", headers=(("retry-after", "1"),))
    shapes = {"chat": {"error"}, "messages": {"type", "error", "request_id"}, "ollama-ps": {"error"}}
    for name, keys in shapes.items():
        shaped = dialects.shape(name, error, "req_1")
        assert (shaped.status, set(shaped.body())) == (429, keys) and set(error.headers) <= set(shaped.headers)


@pytest.mark.parametrize("path", ["//", "*", "/v1", "/v1/models/", "/v1/chat/completions/", "/V1/models", ""])
def test_nothing_there(path: str) -> None:
    with pytest.raises(HttpError) as caught:
        route("GET", path)
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v1/models", "GET, HEAD"),
        ("GET", "/v1/chat/completions", "POST"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models/x", "GET, HEAD"),
    ],
)
def test_methods_that_are_not_allowed(method: str, path: str, allow: str) -> None:
    with pytest.raises(HttpError) as caught:
        route(method, path)
    assert caught.value.status == 405
    assert dict(caught.value.headers) == {"allow": allow}


def test_a_path_that_is_no_utf8() -> None:
    with pytest.raises(HttpError) as caught:
        route("GET", "/v1/models/%ff")
    assert caught.value.status == 400
