# SPDX-License-Identifier: Apache-2.0
"""Keep web pages away from a local HTTP service.

A page anywhere can make the user's browser send requests to loopback addresses: directly, which the browser marks
with `Origin` or `Sec-Fetch-Site`, or under a name of its own that it has pointed here (DNS rebinding), which
shows in `Host`. Programs send neither, and the names of this machine.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

    from syntrop.common.http.http1 import Head

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


def host_of(authority: str) -> str:
    """The host of `host[:port]` in lower case; empty when that is not its form."""
    if authority.startswith("["):
        host, bracket, rest = authority.partition("]")
        host += bracket
    else:
        host, colon, port = authority.partition(":")
        rest = colon + port
    digits = rest[1:]
    if rest and not (rest[0] == ":" and (not digits or (digits.isascii() and digits.isdigit()))):
        return ""
    return host.lower()


def objection(request: Head, hosts: Container[str] = LOCAL_HOSTS) -> str | None:
    """Why the request looks like a foreign page's, or None. `hosts` are the names that this service answers to."""
    authority = request.authority
    if authority is not None and host_of(authority) not in hosts:
        return f"The host {authority!r} is not one that this service answers to."
    origin = request.header("origin")
    if origin is not None:
        if authority is None or origin.lower() != f"http://{authority.lower()}":
            return f"Requests of web pages from {origin!r} are not answered."
        return None
    # A link that the user follows shows the page to the user, not to the page with the link.
    followed = request.method in ("GET", "HEAD") and request.header("sec-fetch-mode") == "navigate"
    if request.header("sec-fetch-site") in ("cross-site", "same-site") and not followed:
        return "Requests of web pages from elsewhere are not answered."
    return None
