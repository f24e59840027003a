# SPDX-License-Identifier: Apache-2.0
"""HTTP as the puller needs it: bounded redirects, patience with servers that fail, registries' tokens. Blocks.

What is not believed: that a redirect leads where we may go, that a server ends, that an answer has the length it
tells. Certificates are those of the system.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import socket
import ssl
import threading
from urllib.parse import urlencode, urljoin, urlsplit

from syntrop import __version__
from syntrop.modeld.pull.credentials import Credentials
from syntrop.modeld.pull.faults import Cancelled, NotFound, Unavailable
from syntrop.modeld.pull.references import check_url, is_local, mirrored

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

REDIRECTS_MAX = 5
DOCUMENT_MAX = 16 << 20  # bytes of a manifest or listing
PIECE = 1 << 18
AGENT = f"syntrop/{__version__}"
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_MOVED = (301, 302, 303, 307, 308)
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


class Control:
    """The way to stop a thread that waits for the network: its waits end, its connection is shut down."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def cancel(self) -> None:
        """From any thread."""
        with self._lock:
            self._stopped.set()
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # not connected yet, or no more

    def hold(self, sock: socket.socket | None) -> None:
        with self._lock:
            self._socket = sock
        self.check()

    def check(self) -> None:
        """Raises Cancelled."""
        if self._stopped.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise Cancelled


class Failed(Exception):
    """One try came to nothing; `after` is how long the server wants to be left alone, in seconds."""

    def __init__(self, reason: str, *, again: bool = True, after: float = 0.0, status: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.after = after
        self.status = status


class Patience:
    """How often and how soon to try again. What made progress begins anew."""

    def __init__(self, tries: int, longest: float, control: Control, base: float = 0.5) -> None:
        self._tries, self._longest, self._control, self._base = tries, longest, control, base
        self._failed = 0

    def progress(self) -> None:
        self._failed = 0

    def failed(self, url: str, failure: Failed) -> None:
        """Wait for the next try; raises Unavailable when there is none, or the server wants too much of it."""
        self._failed += 1
        if not failure.again or self._failed >= self._tries:
            tries = f", {self._failed} times" if self._failed > 1 else ""
            raise Unavailable(url, failure.reason + tries)
        if failure.after > self._longest:
            raise Unavailable(url, f"{failure.reason}; it wants to be left alone for {failure.after:.0f} s")
        self._control.wait(max(failure.after, min(self._base * 2 ** (self._failed - 1), self._longest)))


class Answer:
    """The head of an answer whose body is still to be read."""

    def __init__(
        self, url: str, response: http.client.HTTPResponse, connection: http.client.HTTPConnection
    ) -> None:
        self.url = url
        self.status = response.status
        self.headers = response.headers
        self._response, self._connection = response, connection

    @property
    def length(self) -> int | None:
        """What is told of the body's size."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() else None

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes. Raises Failed when it breaks off."""
        length, seen = self.length, 0
        while True:
            try:
                data = self._response.read1(PIECE)
            except TimeoutError:
                raise Failed("nothing more came") from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise Failed(f"it broke off ({_name(error)})") from None
            if not data:
                break
            seen += len(data)
            yield data
        if length is not None and seen < length:
            raise Failed(f"it broke off after {seen} of {length} bytes")

    def document(self) -> bytes:
        """A body of bounded size. Raises Failed."""
        data = b""
        for piece in self.pieces():
            data += piece
            if len(data) > DOCUMENT_MAX:
                raise Failed(f"an answer of more than {DOCUMENT_MAX} bytes", again=False)
        return data

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Transport:
    """Requests on behalf of one caller."""

    def __init__(
        self,
        control: Control,
        credentials: Credentials,
        *,
        stall_sec: float,
        tries: int,
        longest_wait_sec: float,
        ca_file: str | None = None,
        mirrors: Sequence[str] = (),
    ) -> None:
        self.control = control
        self._credentials = credentials
        self._stall = stall_sec
        self._tries, self._longest = tries, longest_wait_sec
        self._ca_file = ca_file
        self._mirrors = mirrors
        self._context: ssl.SSLContext | None = None
        self._tokens: dict[str, str] = {}

    def patience(self) -> Patience:
        return Patience(self._tries, self._longest, self.control)

    def json(self, url: str, accept: str, reference: str, digest: str = "") -> Any:
        """A JSON document, from a mirror if one has it. `digest` is what it must have, as `sha256:` and digits.

        Raises NotFound and Unavailable.
        """
        *mirrors, origin = mirrored(url, self._mirrors)
        for mirror in mirrors:
            try:
                return self._json(mirror, accept, reference, digest, Patience(1, 0.0, self.control))
            except (NotFound, Unavailable):
                pass  # the source is the one to tell what is wrong
        return self._json(origin, accept, reference, digest, self.patience())

    def _json(self, url: str, accept: str, reference: str, digest: str, patience: Patience) -> Any:
        import json

        while True:
            try:
                with self.get(url, {"Accept": accept}) as answer:
                    data = answer.document()
                if digest and f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
                    raise Unavailable(url, "it has another digest than the one asked for")
                try:
                    return json.loads(data)
                except (ValueError, RecursionError):
                    raise Unavailable(url, "its answer is not JSON") from None
            except Failed as failure:
                if failure.status in (404, 410):
                    raise NotFound(reference, f"{url}: {failure.reason}") from None
                patience.failed(url, failure)

    def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        """One GET, over redirects, with an answer of success. Raises Failed, Unavailable and Cancelled."""
        seen: set[str] = set()
        authorize = True
        asked_for_token = False
        for _ in range(REDIRECTS_MAX + 2):
            if url in seen:
                raise Failed("its redirects go round in a circle", again=False)
            answer = self._once(url, headers, authorize)
            if answer.status in _MOVED:
                with answer:
                    target = urljoin(url, answer.headers.get("location", ""))
                authorize = authorize and _authority(url) == _authority(target)
                _check_redirect(url, target)
                seen.add(url)
                url = target
                continue
            if answer.status == 401 and authorize and not asked_for_token:
                with answer:
                    challenge = answer.headers.get("www-authenticate", "")
                asked_for_token = True
                if challenge[:7].lower() == "bearer ":
                    self._tokens[_authority(url)] = self._token(url, challenge)
                    continue
            if answer.status in (200, 206):
                encoding = answer.headers.get("content-encoding", "identity")
                if encoding == "identity":
                    return answer
                answer.close()
                raise Failed(f"it sent {encoding[:40]!r}, which we did not ask for", again=False)
            answer.close()
            raise _failure(answer)
        raise Failed(f"more than {REDIRECTS_MAX} redirects", again=False)

    def _once(self, url: str, headers: Mapping[str, str], authorize: bool) -> Answer:
        self.control.check()
        try:
            scheme, authority = check_url(url)
        except NotFound as error:
            raise Unavailable(url, error.reason) from None
        parts = urlsplit(url)
        connection = self._connection(scheme, parts.hostname or "", parts.port)
        sent = {"User-Agent": AGENT, "Accept-Encoding": "identity", "Accept": "*/*", **headers}
        if authorize and (words := self._tokens.get(authority) or self._credentials.header(authority)):
            sent["Authorization"] = words
        try:
            connection.connect()
            self.control.hold(connection.sock)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers=sent)
            return Answer(url, connection.getresponse(), connection)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise Failed(f"its certificate is not good: {error.verify_message}", again=False) from None
        except TimeoutError:
            connection.close()
            self.control.check()
            raise Failed(f"it did not answer within {self._stall:g} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            self.control.check()
            raise Failed(f"it cannot be reached ({_name(error)})") from None
        except BaseException:
            connection.close()
            raise

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._stall)
        if self._context is None:
            self._context = ssl.create_default_context(cafile=self._ca_file)
        return http.client.HTTPSConnection(host, port, timeout=self._stall, context=self._context)

    def _token(self, url: str, challenge: str) -> str:
        """A registry's token, as its challenge says where to get one."""
        import json

        told = dict(_PARAMETER.findall(challenge))
        realm = told.get("realm", "")
        _check_redirect(url, realm)
        query = {key: told[key] for key in ("service", "scope") if key in told}
        words = self._credentials.header(_authority(url))
        headers = {"Authorization": words} if words and words.startswith("Basic ") else {}
        with self._once(f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}", headers, False) as answer:
            if answer.status != 200:
                raise _failure(answer)
            try:
                value = json.loads(answer.document())
            except (ValueError, RecursionError):
                raise Failed("its token is not JSON", again=False) from None
        token = value.get("token") or value.get("access_token") if isinstance(value, dict) else None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise Failed("it gave no token", again=False)
        return f"Bearer {token}"


def _failure(answer: Answer) -> Failed:
    text = answer.headers.get("retry-after", "")
    after = float(text) if text.isascii() and text.isdigit() else 0.0
    again = answer.status in _AGAIN
    reason = http.client.responses.get(answer.status, "an answer that is none")
    return Failed(f"{answer.status} {reason}", again=again, after=after, status=answer.status)


def _check_redirect(origin: str, target: str) -> None:
    """Raises Failed where an address leads from the network to this machine, or out of https."""
    try:
        scheme, authority = check_url(target)
    except NotFound as error:
        raise Failed(f"it leads to {target[:200]!r}: {error.reason}", again=False) from None
    if origin.startswith("https:") and scheme != "https":
        raise Failed("it leads from https to http", again=False)
    if is_local(authority) and not is_local(_authority(origin)):
        raise Failed("it leads from the network to this machine", again=False)


def _authority(url: str) -> str:
    return check_url(url)[1]


def _name(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
