# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from syntrop.common.http.http1 import Head
from syntrop.common.http.origin import host_of, objection


def request(authority: str | None, method: str = "POST", **headers: str) -> Head:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Head(method, "/", "", named, authority=authority)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:32768", "[::1]", "[::1]:32768"])
def test_programs_on_this_machine(host: str) -> None:
    assert objection(request(host)) is None
    assert objection(request(host, origin=f"http://{host}")) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:32768",
        "127.0.0.1.evil.example",
        "localhost:x",
        "localhost:1:2",
        "[::1]x",
        "",
        "user@localhost",
        "localhost.",
        "[::2]:1",
        "0.0.0.0:32768",
    ],
)
def test_names_that_were_pointed_here(host: str) -> None:
    assert objection(request(host)) is not None


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:3000", "https://localhost:1", "http://localhost"]
)
def test_pages_from_elsewhere(origin: str) -> None:
    assert objection(request("localhost:1", origin=origin)) is not None


def test_what_browsers_add_without_an_origin() -> None:
    for site in ("cross-site", "same-site"):
        assert objection(request("localhost", "GET", sec_fetch_site=site)) is not None
        link = request("localhost", "GET", sec_fetch_site=site, sec_fetch_mode="navigate")
        assert objection(link) is None
    assert objection(request("localhost", sec_fetch_site="cross-site", sec_fetch_mode="navigate")) is not None
    assert objection(request("localhost", "GET", sec_fetch_site="none")) is None


def test_more_hosts_and_none() -> None:
    assert objection(request("box.lan:1"), {"box.lan"}) is None
    assert objection(request(None)) is None
    assert objection(request(None, origin="http://localhost")) is not None
    assert host_of("A:1") == "a"
