# SPDX-License-Identifier: Apache-2.0
"""The server's side of HTTP/2 without I/O: bytes and times in, typed events and bytes out.

Theory of operation. The bytes of a connection are cut into frames here, judged, and given one at a time to `h2`,
which keeps the states, windows and header tables. Between the two stands what a server must not let through
though the protocol allows it:

1. Frames that carry nothing (pings, settings, priorities, resets, window updates, empty or tiny pieces of a body,
   and kinds that nobody knows) are paid for from a budget that grows with time, with requests and with what is
   sent. CVE-2019-9511 to 9518 and their kin.
2. Streams that end before their reply (reset by the client, by us for its fault, or refused) are paid for from
   another one. CVE-2023-44487, CVE-2025-8671.
3. A header block is bounded in bytes and frames before it is decoded (CVE-2024-27316), and decoded.
4. Settings that nobody knows are not remembered, and the client does not choose the size of our header table.

Who overdraws a budget gets GOAWAY with ENHANCE_YOUR_CALM. GOAWAY is ours in both directions, since `h2` takes it
for the end of all streams while it is only the end of new ones; its clients as well, so that we say it last.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error, ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import NeverIndexedHeaderTuple
from hyperframe.frame import GoAwayFrame

from syntrop.common.http import http1
from syntrop.common.http.http1 import Event, Head, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_MAX = 16 * 1024  # bytes of a frame's payload, either way; what everybody must take
BLOCK_MAX = 64 * 1024  # bytes of a header block, as sent and as decoded; over http1.HEAD_MAX they are answered 431
BLOCK_FRAMES = 32
STREAM_WINDOW = 128 * 1024  # bytes of a body that are held for a handler
CONNECTION_WINDOW = 1024 * 1024  # and for all of a connection
TABLE_MAX = 4096  # bytes of a header table, either way
TINY = 64  # bytes of a piece of a body that are hardly worth a frame
SMALL = 1024  # bytes of a piece of ours that the client's window may cut without paying for it
FRAMES_BURST, FRAMES_RATE = 1000, 250.0  # frames that carry nothing, and how many a second
RESETS_BURST, RESETS_RATE = 200, 33.0

_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _, _, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(10)
_END_STREAM, _ACK, _END_HEADERS = 0x1, 0x1, 0x4
_STREAM_ID = 0x7FFFFFFF
_HEADER_TABLE_SIZE = 1
_SETTINGS_KNOWN = (1, 2, 3, 4, 5, 6)

NO_ERROR = ErrorCodes.NO_ERROR
PROTOCOL_ERROR = ErrorCodes.PROTOCOL_ERROR
INTERNAL_ERROR = ErrorCodes.INTERNAL_ERROR
FRAME_SIZE_ERROR = ErrorCodes.FRAME_SIZE_ERROR
REFUSED_STREAM = ErrorCodes.REFUSED_STREAM
CANCEL = ErrorCodes.CANCEL
ENHANCE_YOUR_CALM = ErrorCodes.ENHANCE_YOUR_CALM


class Malformed(Exception):
    """The settings of a request to upgrade are none."""


class Request(Event):
    """A request's head on a new stream; `refused` when it is to be answered so. Like all events of one stream it
    may come after the stream was reset by us."""

    __slots__ = ("head", "refused", "stream")

    def __init__(self, stream: int, head: Head, refused: Refused | None = None) -> None:
        self.stream = stream
        self.head = head
        self.refused = refused


class Data(Event):
    """A piece of a stream's body; `size` bytes of the windows are to be given back for it (`acknowledge()`)."""

    __slots__ = ("data", "size", "stream")

    def __init__(self, stream: int, data: bytes, size: int) -> None:
        self.stream = stream
        self.data = data
        self.size = size


class Ended(Event):
    """The stream's request is complete."""

    __slots__ = ("stream",)

    def __init__(self, stream: int) -> None:
        self.stream = stream


class Reset(Event):
    """The stream is no more: the client wants no reply, or broke its rules."""

    __slots__ = ("stream",)

    def __init__(self, stream: int) -> None:
        self.stream = stream


class Opened(Event):
    """There may be more room to send: on one stream, on all of them for 0."""

    __slots__ = ("stream",)

    def __init__(self, stream: int) -> None:
        self.stream = stream


class Leaving(Event):
    """The client will begin no more streams."""

    __slots__ = ()


class Failed(Event):
    """The last event: the connection is to be closed once GOAWAY is sent."""

    __slots__ = ("code", "reason")

    def __init__(self, code: ErrorCodes, reason: str) -> None:
        self.code = code
        self.reason = reason


class Budget:
    """What may be spent: `burst` at once, `rate` more a second, and what is earned; never saved over `burst`."""

    def __init__(self, burst: float, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left = burst
        self._since = 0.0

    def spend(self, now: float, cost: float = 1.0) -> bool:
        """Pay; False when it is overdrawn. `now` in seconds of any clock that never goes back."""
        if self._since:
            self._left = min(self._burst, self._left + (now - self._since) * self._rate)
        self._since = now
        self._left -= cost
        return self._left >= 0

    def earn(self, amount: float) -> None:
        self._left = min(self._burst, self._left + amount)


class _Engine(H2Connection):
    MAX_CLOSED_STREAMS = 1024  # of 65,536, which take megabytes


class Protocol:
    """One connection. `feed()` and then `step()` until None; what is to be sent is in `output()`.

    `h2c`: the settings of a request that asked for the change; it is stream 1 then, complete. Raises Malformed.
    """

    def __init__(self, *, streams: int = 128, body_max: int = http1.BODY_MAX, h2c: str | None = None) -> None:
        self._body_max = body_max
        self._buffer = bytearray()
        self._opened = False  # whether the preface has come
        self._settled = False  # and the client's first settings
        self._block = 0  # bytes of a header block that is not complete, and its frames
        self._block_frames = 0
        self._frames = Budget(FRAMES_BURST, FRAMES_RATE)
        self._resets = Budget(RESETS_BURST, RESETS_RATE)
        self._now = 0.0
        self._pending = b""  # of what is to be sent, the part that h2 no longer holds
        self.last: int | None = None  # the last stream that is served, once that is so
        self._told = False
        self.failed: Failed | None = None
        engine = _Engine(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        engine.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: streams,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: http1.HEAD_MAX,
                SettingCodes.HEADER_TABLE_SIZE: TABLE_MAX,
                SettingCodes.ENABLE_CONNECT_PROTOCOL: 0,
            },
        )
        engine.decoder.max_header_list_size = BLOCK_MAX
        if h2c is None:
            engine.initiate_connection()
        else:
            settings = urlsafe_b64encode(_known(_decoded(h2c)))
            try:
                engine.initiate_upgrade_connection(settings)
            except ProtocolError as error:
                raise Malformed from error
        engine.increment_flow_control_window(CONNECTION_WINDOW - 65535)
        # It knows too many streams for an error of the connection; we refuse those above by themselves.
        engine.local_settings.max_concurrent_streams = _STREAM_ID
        engine.local_settings.acknowledge()
        self._engine = engine

    # --- in ----------------------------------------------------------------------------------------------

    @property
    def partial(self) -> bool:
        """Whether something has begun that is not complete: the preface, a frame, a header block."""
        return not self._settled or bool(self._buffer) or self.heading

    @property
    def heading(self) -> bool:
        """Whether a header block has begun and is not complete."""
        return bool(self._block_frames) or (len(self._buffer) > 3 and self._buffer[3] == _HEADERS)

    def feed(self, data: bytes) -> None:
        """Take bytes as they arrived; `step()` what is there before more are taken."""
        if self.failed is None:
            self._buffer += data

    def step(self, now: float) -> list[Event] | None:
        """The events of the next frame; None when there is no whole one. `now` in seconds, monotonic."""
        self._now = now
        buffer = self._buffer
        if self.failed is not None:
            return None
        if not self._opened:
            if not PREFACE.startswith(buffer[: len(PREFACE)]):
                return self._fail(PROTOCOL_ERROR, "not the preface")
            if len(buffer) < len(PREFACE):
                return None
            self._opened = True
            del buffer[: len(PREFACE)]
            self._engine.receive_data(PREFACE)
        if len(buffer) < 9:
            return None
        length = int.from_bytes(buffer[:3], "big")
        if length > FRAME_MAX:
            return self._fail(FRAME_SIZE_ERROR, "a frame is too long")
        if len(buffer) < 9 + length:
            return None
        frame = bytes(buffer[: 9 + length])
        del buffer[: 9 + length]
        # h2 forgets what it has not yet sent when it fails.
        self._pending += self._engine.data_to_send()
        try:
            return self._frame(frame, frame[3], frame[4], length)
        except H2Error as error:
            code = getattr(error, "error_code", PROTOCOL_ERROR)
            return self._fail(ErrorCodes(code), str(error))
        except Exception as error:  # whatever it is, it is no reason to fail for the other connections
            from syntrop.common import journal

            journal.exception("HTTP/2 fails over a frame", error)
            return self._fail(INTERNAL_ERROR, "")

    def _frame(self, frame: bytes, kind: int, flags: int, length: int) -> list[Event]:
        if not self._settled:
            if kind != _SETTINGS or flags & _ACK:
                return self._fail(PROTOCOL_ERROR, "the settings come first")
            self._settled = True
        if kind in (_HEADERS, _CONTINUATION):
            self._block += length
            self._block_frames += 1
            if self._block > BLOCK_MAX or self._block_frames > BLOCK_FRAMES:
                return self._fail(ENHANCE_YOUR_CALM, "a header block is too long")
            if flags & _END_HEADERS:
                self._block = self._block_frames = 0
        elif not (kind == _DATA and (length >= TINY or flags & _END_STREAM)) and not self._frames.spend(self._now):
            return self._fail(ENHANCE_YOUR_CALM, "too many frames that carry nothing")
        if kind == _GOAWAY and frame[5:9] == bytes(4) and length >= 8 and not self._block_frames:
            return [Leaving()]
        if kind == _SETTINGS and not flags & _ACK and length % 6 == 0:
            payload = _known(frame[9:])
            frame = len(payload).to_bytes(3, "big") + frame[3:9] + payload
        return self._translate(self._engine.receive_data(frame))

    def _translate(self, happened: Iterable[object]) -> list[Event]:
        events: list[Event] = []
        for one in happened:
            if isinstance(one, RequestReceived):
                assert one.stream_id is not None and one.headers is not None
                self._frames.earn(3)
                bare = one.stream_ended is not None
                events.append(Request(one.stream_id, *_request(one.headers, self._body_max, bare)))
            elif isinstance(one, DataReceived):
                assert one.stream_id is not None and one.data is not None
                events.append(Data(one.stream_id, one.data, one.flow_controlled_length or 0))
            elif isinstance(one, StreamEnded):
                assert one.stream_id is not None
                events.append(Ended(one.stream_id))
            elif isinstance(one, StreamReset):
                assert one.stream_id is not None
                events.append(Reset(one.stream_id))
            elif isinstance(one, WindowUpdated):
                events.append(Opened(one.stream_id or 0))
            elif isinstance(one, RemoteSettingsChanged):
                events.append(Opened(0))
        return events

    def _fail(self, code: ErrorCodes, reason: str) -> list[Event]:
        self.failed = Failed(code, reason)
        self._buffer.clear()
        served = self.last if self.last is not None else self._engine.highest_inbound_stream_id
        # What h2 would say is replaced: it does not know our reasons.
        self._engine.clear_outbound_data_buffer()
        self._pending += _goaway(served, code, reason)
        return [self.failed]

    # --- out ---------------------------------------------------------------------------------------------

    def output(self) -> bytes:
        """What is to be sent now."""
        data, self._pending = self._pending + self._engine.data_to_send(), b""
        return data

    def headers(self, stream: int, headers: Iterable[tuple[str, str]], *, end: bool) -> None:
        """Raises ValueError for a value that would break out of its line."""
        encoded = []
        for name, value in headers:
            if "\r" in value or "\n" in value or "\0" in value:
                raise ValueError(f"header {name} has a line break in its value")
            pair = name.lower().encode("latin-1"), value.encode("latin-1", "replace")
            # What is new each time would only push out of the table what is not.
            encoded.append(NeverIndexedHeaderTuple(*pair) if name == "x-request-id" else pair)
        self._engine.send_headers(stream, encoded, end_stream=end)

    def room(self, stream: int) -> int:
        """Bytes that may be sent on a stream now, at most one frame."""
        return min(max(0, self._engine.local_flow_control_window(stream)), FRAME_MAX)

    def data(self, stream: int, piece: memoryview, *, rest: int, end: bool) -> None:
        """Send a piece of at most `room()`; `rest` bytes of the same are still to come."""
        if not rest or len(piece) >= SMALL:
            self._frames.earn(2)  # a client answers it with an update of two windows at most
        self._engine.send_data(stream, piece, end_stream=end)

    def acknowledge(self, stream: int, size: int) -> None:
        """Give `size` bytes of the windows back, those of a stream that is no more as well."""
        if size and self.failed is None:
            self._engine.acknowledge_received_data(size, stream)

    def reset(self, stream: int, code: ErrorCodes) -> None:
        """End a stream of ours without an end of its reply."""
        if self.failed is None:
            self._engine.reset_stream(stream, code)

    def refuse(self, stream: int) -> list[Event]:
        """Nothing of the stream was done, so that the client may ask again."""
        self.reset(stream, REFUSED_STREAM)
        return self.pay()

    def pay(self) -> list[Event]:
        """Pay for a stream that ended early; the events of that."""
        if self.failed is None and not self._resets.spend(self._now):
            return self._fail(ENHANCE_YOUR_CALM, "too many streams end before their replies")
        return []

    def leave(self) -> None:
        """Serve no more streams than have begun."""
        if self.last is None:
            self.last = self._engine.highest_inbound_stream_id

    def goaway(self) -> None:
        """Tell the client so. Not before its last reply: clients on h2 understand nothing that follows it."""
        self.leave()
        if self.failed is None and not self._told:
            self._told = True
            assert self.last is not None
            self._pending += self._engine.data_to_send() + _goaway(self.last, NO_ERROR, "")


def _goaway(last: int, code: ErrorCodes, reason: str) -> bytes:
    frame = GoAwayFrame(0, last_stream_id=last, error_code=int(code), additional_data=reason.encode()[:200])
    data: bytes = frame.serialize()
    return data


def _decoded(h2c: str) -> bytes:
    """The payload of a frame of settings as RFC 7540, 3.2.1 has it in a header."""
    try:
        payload = a2b_base64(
            h2c.replace("-", "+").replace("_", "/") + "=" * (-len(h2c) % 4), strict_mode=True
        )
    except (Base64Error, ValueError) as error:
        raise Malformed from error
    if len(payload) % 6:
        raise Malformed
    return payload


def _known(payload: bytes) -> bytes:
    """Settings without those that nobody knows; the size of the header table that we fill is bounded."""
    kept = []
    for i in range(0, len(payload), 6):
        name = int.from_bytes(payload[i : i + 2], "big")
        value = int.from_bytes(payload[i + 2 : i + 6], "big")
        if name == _HEADER_TABLE_SIZE:
            value = min(value, TABLE_MAX)
        if name in _SETTINGS_KNOWN:
            kept.append(payload[i : i + 2] + value.to_bytes(4, "big"))
    return b"".join(kept)


def _request(
    fields: Iterable[tuple[bytes, bytes]], body_max: int, bare: bool
) -> tuple[Head, Refused | None]:
    """A request's head, and how it is to be answered when it is not for a handler. `bare`: it has no body."""
    pseudo: dict[bytes, str] = {}
    headers: list[tuple[str, str]] = []
    lengths: list[str] = []
    size = 0
    expects = False
    refused: Refused | None = None
    host: str | None = None
    for name, value in fields:
        size += len(name) + len(value) + 4
        text = value.decode("latin-1")
        if name.startswith(b":"):
            pseudo[name] = text
            continue
        headers.append((name.decode("ascii"), text))
        if name == b"content-length":
            lengths.append(text)
        elif name == b"host":
            host = text
        elif name == b"expect":
            expects = text.lower() == "100-continue"
            if not expects:
                refused = Refused(417, f"expectation {text[:40]!r} cannot be met")
    method = pseudo.get(b":method", "")
    target = pseudo.get(b":path", "")
    path, _, query = target.partition("?")
    length = int(lengths[0]) if len(lengths) == 1 and lengths[0].isdecimal() else None
    head = Head(
        method if method in http1.METHODS else "GET",
        path,
        query,
        tuple(headers),
        authority=pseudo.get(b":authority", host),
        length=0 if bare else length,
        expects_continue=expects,
    )
    if size > http1.HEAD_MAX or len(headers) > http1.HEADERS_MAX:
        most = f"{http1.HEAD_MAX} bytes or {http1.HEADERS_MAX} headers"
        refused = Refused(431, f"the head of the request is over {most}")
    elif method == "CONNECT":
        refused = Refused(501, "tunnels are not offered here")
    elif method not in http1.METHODS:
        refused = Refused(501, f"the method {method[:40]!r} is not understood")
    elif pseudo.get(b":scheme") not in ("http", "https"):
        refused = Refused(400, "the scheme is http")
    elif not (target.startswith("/") or target == "*") or not all("!" <= one <= "~" for one in target):
        refused = Refused(400, "malformed request: the path is none")
    elif lengths and (length is None or (bare and length)):
        refused = Refused(400, "malformed request: the length of the body is wrong")
    elif length is not None and length > body_max:
        refused = Refused(413, f"the body of the request is over {body_max} bytes")
    return head, refused
