# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from syntrop.common.http.errors import HttpError
from syntrop.routerd.routes import route


def test_paths() -> None:
    assert route("GET", "/health") == ("health", "")
    assert route("HEAD", "/v1/models") == ("models", "")
    assert route("GET", "/v1/models/a%2fb%3Ac%C3%BC/d") == ("model", "a/b:cü/d")
    assert route("POST", "/v1/chat/completions") == ("chat", "")


@pytest.mark.parametrize("path", ["/", "*", "/v1", "/v1/models/", "/v1/chat/completions/", "/V1/models", ""])
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
