# SPDX-License-Identifier: Apache-2.0
"""Logging for daemons: native journal fields when stderr is the journal, `<N>` prefixed lines otherwise.

`log()` never blocks and never raises: a daemon must not die, or stall its loop, because nobody reads its log.
What could not be written is counted, and the count is told as soon as something can be written again.
The `logging` package is not used: it costs more than a control daemon's first reply may take.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import sys

from syntrop.common import paths

EMERG, ALERT, CRIT, ERR, WARNING, NOTICE, INFO, DEBUG = range(8)
LEVELS = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")

# One identifier for each event that an operator may want to be told about (`journalctl MESSAGE_ID=…`).
INTERNAL_ERROR = "6a7c8d0f1f5b4f0e9f0a2d1b3c6e5a41"
UNKNOWN_SETTING = "0d2e4b7a95c64a3f8a1c7be04d9f6172"

_PIPE_BUF = 4096  # POSIX: a pipe that polls writable takes this many bytes without blocking
_FIELD_NAME_MAX = 64  # systemd.journal-fields(7): longer names are dropped by journald
_ALIASES = {"error": ERR, "warn": WARNING, "critical": CRIT, "emergency": EMERG, "panic": EMERG}


def parse_level(text: str) -> int:
    """Number of a level given by name or digit; `console:debug` and friends count by their last part.

    Raises ValueError for anything else.
    """
    word = text.rsplit(":", 1)[-1].strip().lower()
    if word in LEVELS:
        return LEVELS.index(word)
    if word in _ALIASES:
        return _ALIASES[word]
    if word.isascii() and word.isdigit() and int(word) <= DEBUG:
        return int(word)
    raise ValueError(f"log level {text!r} is none of {', '.join(LEVELS)}, 0 to 7")


class Journal:
    """One log sink: where stderr leads, the level above which messages are dropped, and our identifier."""

    __slots__ = ("_dropped", "_socket", "identifier", "level", "native")

    def __init__(self, *, native: bool, level: int = INFO, identifier: str = "") -> None:
        self.native = native
        self.level = level
        self.identifier = identifier or os.path.basename(sys.argv[0] if sys.argv else "") or "syntrop"
        self._socket: socket.socket | None = None
        self._dropped = 0

    @classmethod
    def from_environment(cls) -> Journal:
        level = INFO
        given = os.environ.get("SYSTEMD_LOG_LEVEL", "")
        if given:
            try:
                level = parse_level(given)
            except ValueError:
                pass  # as systemd does: a level that cannot be read leaves the default
        return cls(native=_stderr_is_journal(), level=level)

    def log(self, priority: int, message: str, message_id: str | None, fields: dict[str, object]) -> None:
        if priority > self.level:
            return
        if self._dropped:
            lost, self._dropped = self._dropped, 0
            notice = f"{lost} log messages were dropped because nothing read them"
            if not self._write(WARNING, notice, None, {}):
                self._dropped = lost + 1
                return
        if not self._write(priority, message, message_id, fields):
            self._dropped += 1

    def _write(self, priority: int, message: str, message_id: str | None, fields: dict[str, object]) -> bool:
        if self.native:
            datagram = encode_fields(
                {
                    "PRIORITY": priority,
                    "SYSLOG_IDENTIFIER": self.identifier,
                    "MESSAGE": message,
                    **({"MESSAGE_ID": message_id} if message_id else {}),
                    **fields,
                }
            )
            if self._send(datagram):
                return True
        return _write_stderr(encode_lines(priority, message))

    def _send(self, datagram: bytes) -> bool:
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.setblocking(False)
            address = paths.run("systemd", "journal", "socket")
            try:
                self._socket.sendto(datagram, address)
            except OSError as error:
                import errno

                if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                    raise
                self._send_sealed(datagram, address)
        except OSError:
            return False
        return True

    def _send_sealed(self, datagram: bytes, address: str) -> None:
        """Pass what is too large for a datagram as a sealed memory file, as sd_journal_sendv(3) does."""
        from syntrop.common import memfd

        handle = memfd.create("journal-data", datagram)
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", handle))
            assert self._socket is not None
            self._socket.sendmsg([], [rights], 0, address)
        finally:
            os.close(handle)


def encode_fields(fields: dict[str, object]) -> bytes:
    """The journal's native datagram. Values that are None, and names journald would drop, are left out."""
    parts: list[bytes] = []
    for field, value in fields.items():
        name = field.upper()
        if value is None or not _is_field_name(name):
            continue
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
        key = name.encode()
        if b"\n" in data:
            parts += (key, b"\n", struct.pack("<Q", len(data)), data, b"\n")
        else:
            parts += (key, b"=", data, b"\n")
    return b"".join(parts)


def encode_lines(priority: int, message: str) -> bytes:
    """`<N>` prefixed lines (sd-daemon(3)), one for each line of the message."""
    prefix = f"<{priority}>"
    lines = message.splitlines() or [""]
    return "".join(f"{prefix}{line}\n" for line in lines).encode("utf-8", "backslashreplace")


def _is_field_name(name: str) -> bool:
    if not name or len(name) > _FIELD_NAME_MAX or not ("A" <= name[0] <= "Z"):
        return False  # a leading underscore marks what journald itself vouches for
    return all("A" <= letter <= "Z" or "0" <= letter <= "9" or letter == "_" for letter in name)


def _stderr_is_journal() -> bool:
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(2)
        return (status.st_dev, status.st_ino) == (int(device), int(inode))
    except (OSError, ValueError):
        return False


def _write_stderr(data: bytes) -> bool:
    """Write to descriptor 2 only what it takes without blocking; False when some of it was left."""
    try:
        poller = select.poll()
        poller.register(2, select.POLLOUT)
        if stat.S_ISSOCK(os.fstat(2).st_mode):
            stream = socket.socket(fileno=os.dup(2))
            try:
                return stream.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(data)
            finally:
                stream.close()
        view = memoryview(data)
        while view:
            ready = poller.poll(0)
            if not ready or not ready[0][1] & select.POLLOUT:
                return False
            view = view[os.write(2, view[:_PIPE_BUF]) :]
    except OSError:
        return False
    return True


_journal: Journal | None = None


def sink() -> Journal:
    """The process's log, made from the environment at its first use."""
    global _journal
    if _journal is None:
        _journal = Journal.from_environment()
    return _journal


def identify(name: str) -> None:
    """Set SYSLOG_IDENTIFIER (a daemon's name: argv[0] is the interpreter's business)."""
    sink().identifier = name


def set_level(text: str) -> None:
    """Drop what is less urgent than this level. Raises ValueError for an unknown level."""
    sink().level = parse_level(text)


def log(priority: int, message: str, *, message_id: str | None = None, **FIELDS: object) -> None:
    """Log one message. Field names are upper-cased; fields are seen only where the journal is native."""
    sink().log(priority, message, message_id, FIELDS)


def debug(message: str, *, message_id: str | None = None, **FIELDS: object) -> None:
    sink().log(DEBUG, message, message_id, FIELDS)


def info(message: str, *, message_id: str | None = None, **FIELDS: object) -> None:
    sink().log(INFO, message, message_id, FIELDS)


def notice(message: str, *, message_id: str | None = None, **FIELDS: object) -> None:
    sink().log(NOTICE, message, message_id, FIELDS)


def warning(message: str, *, message_id: str | None = None, **FIELDS: object) -> None:
    sink().log(WARNING, message, message_id, FIELDS)


def error(message: str, *, message_id: str | None = None, **FIELDS: object) -> None:
    sink().log(ERR, message, message_id, FIELDS)


def exception(
    message: str, exc: BaseException, *, message_id: str = INTERNAL_ERROR, **FIELDS: object
) -> None:
    """Log an internal fault with its traceback, and where it was raised (CODE_FILE, CODE_LINE, CODE_FUNC)."""
    import traceback

    text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__)).rstrip()
    frames = traceback.extract_tb(exc.__traceback__)
    where = {}
    if frames:
        last = frames[-1]
        where = {"CODE_FILE": last.filename, "CODE_LINE": last.lineno, "CODE_FUNC": last.name}
    sink().log(ERR, f"{message}\n{text}", message_id, {"EXCEPTION": type(exc).__name__, **where, **FIELDS})
