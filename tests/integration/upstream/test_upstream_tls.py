# SPDX-License-Identifier: Apache-2.0
"""Providers over https: whom we trust, whom we do not, and streams through TLS."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import (
    HEAD,
    KEY,
    LAST,
    STREAM,
    TEXT,
    Peer,
    Upstream,
    answer,
    chunked,
    delta,
    provider,
    question,
    run,
    told,
    until,
)

from syntrop.common import loop
from syntrop.common.http import chat
from syntrop.common.http.client import Client, Limits
from syntrop.common.http.wire import Unreachable, Untrusted


def openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with our own authority (`ca.pem`) and servers' certificates by it: `good`, `other` (for another
    name) and `late` (not valid any more)."""
    folder = tmp_path_factory.mktemp("tls")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=Ours",
            "-addext", "keyUsage=critical,keyCertSign", folder=folder)  # fmt: skip
    for name, names, days in (
        ("good", "IP:127.0.0.1,DNS:localhost", "2"),
        ("other", "DNS:other.example,IP:127.0.0.2", "2"),
        ("late", "IP:127.0.0.1", "-1"),
    ):
        extensions = folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\nbasicConstraints=CA:FALSE\n")
        openssl(
            "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", folder=folder
        )
        times = (
            ["-days", days]
            if days != "-1"
            else ["-not_before", "20200101000000Z", "-not_after", "20200102000000Z"]
        )
        try:
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                    "-out", f"{name}.pem", "-extfile", str(extensions), *times, folder=folder)  # fmt: skip
        except subprocess.CalledProcessError:
            # Before 3.4 its command knows no dates; a negative number of days ends it before it began.
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                    "-out", f"{name}.pem", "-extfile", str(extensions), "-days", days, folder=folder)  # fmt: skip
    return folder


def served(folder: Path, name: str) -> ssl.SSLContext:
    rules = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    rules.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return rules


@pytest.fixture(autouse=True)
def fresh_rules() -> Iterator[None]:
    """What is trusted is read once a process: forget it between tests."""
    from syntrop.common.http import tls

    tls._rules.clear()
    yield
    tls._rules.clear()


def asking(upstream: Upstream, folder: Path | None, **limits: Any) -> Client:
    authorities = None if folder is None else str(folder / "ca.pem")
    return Client(f"https://127.0.0.1:{upstream.port}", authorities=authorities, limits=Limits(**limits))


async def refuses(peer: Peer) -> None:
    raise AssertionError("a server that is not trusted was spoken to")


def test_streams_through_tls(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))

    async def main() -> None:
        async with Upstream(answer, rules=served(authority, "good")) as upstream:
            up: Any = provider(f"https://127.0.0.1:{upstream.port}")
            for _ in range(3):
                assert (await told(up))[0] == TEXT
                await until(lambda: up.client.kept == 1)
            assert upstream.connections == 1
            up.close()
            up = provider(f"https://localhost:{upstream.port}")
            assert (await told(up))[0] == TEXT
            up.close()

    run(main())


@pytest.mark.parametrize("cut", [1, 5, 1000])
def test_cut_anywhere_through_tls(authority: Path, cut: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + chunked(STREAM, 90) + LAST, cut=cut)
        await peer.gone()

    async def main() -> None:
        async with Upstream(script, rules=served(authority, "good")) as upstream:
            client = asking(upstream, authority)
            response = await client.request("GET", "/")
            assert await response.read(100_000) == STREAM
            response.close()
            client.close()

    run(main())


@pytest.mark.parametrize(
    ("name", "trusting", "match"),
    [
        ("good", False, "self.signed|unable to get local issuer"),
        ("other", True, "IP address mismatch"),
        ("late", True, "expired"),
    ],
)
def test_whom_we_do_not_trust(authority: Path, name: str, trusting: bool, match: str) -> None:
    async def handshake_fails(peer: Peer) -> None:
        await peer.request()

    async def main() -> None:
        upstream = Upstream(handshake_fails, rules=served(authority, name))
        client = asking(upstream, authority if trusting else None)
        with pytest.raises(Untrusted, match=match):
            await client.request("GET", "/", [("authorization", KEY)])
        assert client.open == 0
        await until(lambda: upstream.ended == 1)
        assert isinstance(upstream.failures[0], ssl.SSLError | OSError)  # it was told no request
        await upstream.close()
        client.close()

    run(main())


def test_whom_we_do_not_trust_is_a_provider_that_is_not_there(authority: Path) -> None:
    async def main() -> None:
        upstream = Upstream(answer, rules=served(authority, "good"))
        up = provider(f"https://127.0.0.1:{upstream.port}")
        with pytest.raises(chat.Unavailable, match="not trusted") as caught:
            await told(up)
        assert KEY not in caught.value.message
        up.close()
        await upstream.close()

    run(main())


def test_who_speaks_no_tls() -> None:
    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.gone()

    async def silent(peer: Peer) -> None:
        await peer.gone()

    async def main() -> None:
        async with Upstream(script, silent) as upstream:
            client = asking(upstream, None, connect=0.5)
            with pytest.raises(Unreachable, match="no TLS"):
                await client.request("GET", "/")
            with pytest.raises(Unreachable, match="no connection within"):
                await client.request("GET", "/")
            await until(lambda: upstream.ended == 2)
            assert client.open == 0
            client.close()

    run(main())


def test_authorities_that_are_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with Upstream(refuses) as upstream:
            client = asking(upstream, tmp_path)
            with pytest.raises(Untrusted, match="cannot be read"):
                await client.request("GET", "/")
            assert (client.open, upstream.connections) == (0, 0)

    run(main())


def test_an_end_without_goodbye_is_no_end(authority: Path) -> None:
    """A body that ends with the connection: without TLS's goodbye anybody may have cut it."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head + delta("x", "stop"))

    async def main() -> None:
        async with Upstream(script, rules=served(authority, "good")) as upstream:
            client = asking(upstream, authority)
            response = await client.request("GET", "/")
            from syntrop.common.http.wire import Broken

            with pytest.raises(Broken):
                await response.read(1000)
            response.close()
            client.close()

    run(main())


def test_a_hang_up_reaches_the_server_through_tls(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    saw = loop.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + chunked(delta("x")))
        await peer.gone()
        saw.set()

    async def main() -> None:
        async with Upstream(script, rules=served(authority, "good")) as upstream:
            up: Any = provider(f"https://127.0.0.1:{upstream.port}")
            generation = up.generate(question())
            await generation.next()
            await generation.close()
            await saw.wait()
            assert up.client.open == 0
            up.close()

    run(main())


def test_a_large_request_through_tls(authority: Path) -> None:
    seen: list[int] = []

    async def script(peer: Peer) -> None:
        seen.append(len((await peer.request()).body))
        await peer.send(HEAD + chunked(STREAM) + LAST)

    async def main() -> None:
        async with Upstream(script, rules=served(authority, "good")) as upstream:
            client = asking(upstream, authority)
            response = await client.request("POST", "/", (), bytes(10_000_000))
            assert await response.read(100_000) == STREAM
            response.close()
            client.close()

    run(main())
    assert seen == [10_000_000]


def test_plain_http_does_without_ssl() -> None:
    code = (
        "import syntrop.routerd.providers.openai, syntrop.routerd.providers.anthropic; print('ssl' in sys.modules)"
    )
    source = str(Path(__file__).parents[3] / "src")
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert found.stdout == "False\n"
