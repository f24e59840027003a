# SPDX-License-Identifier: Apache-2.0
"""TLS around a connected socket, as a client, on the loop. For https alone: importing `ssl` costs 16 ms and 6 MiB.

Certificates and names are always verified. `SSL_CERT_FILE` and `SSL_CERT_DIR` name other authorities than the
system's, as for every user of OpenSSL.
"""

from __future__ import annotations

import ssl

from syntrop.common import loop
from syntrop.common.http.wire import Unreachable, Untrusted, Wire, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

_rules: dict[str | None, ssl.SSLContext] = {}  # the system's authorities are a megabyte: once a process


class TlsWire(Wire):
    """A stream inside of TLS. An end without TLS's own goodbye is Broken: anybody on the way may have made it."""

    _want_read = (ssl.SSLWantReadError,)
    _want_write = (ssl.SSLWantWriteError,)


def rules(authorities: str | None = None) -> ssl.SSLContext:
    """What is asked of servers; blocks. `authorities`: file of those to trust instead of the system's.

    Raises Untrusted.
    """
    found = _rules.get(authorities)
    if found is None:
        try:
            found = ssl.create_default_context(cafile=authorities)
        except OSError as error:
            raise Untrusted(f"the authorities cannot be read: {reason(error)}") from None
        found.set_alpn_protocols(["http/1.1"])
        _rules[authorities] = found
    return found


async def secure(sock: socket.socket, host: str, rules: ssl.SSLContext) -> TlsWire:
    """Shake hands; the caller bounds the time. Raises Unreachable and Untrusted, with the socket closed."""
    try:
        inside = rules.wrap_socket(
            sock, server_hostname=host, do_handshake_on_connect=False, suppress_ragged_eofs=False
        )
    except (OSError, ValueError) as error:
        sock.close()
        raise Unreachable(f"no TLS with {host}: {reason(error)}") from None
    wire = TlsWire(inside)
    try:
        while True:
            try:
                inside.do_handshake()
                return wire
            except ssl.SSLWantReadError:
                await loop.readable(wire.fd)
            except ssl.SSLWantWriteError:
                await loop.writable(wire.fd)
    except ssl.SSLCertVerificationError as error:
        wire.close()
        raise Untrusted(f"the certificate of {host} is not trusted: {error.verify_message}") from None
    except OSError as error:
        wire.close()
        raise Unreachable(f"no TLS with {host}: {reason(error)}") from None
    except BaseException:
        wire.close()
        raise
