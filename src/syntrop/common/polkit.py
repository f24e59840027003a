# SPDX-License-Identifier: Apache-2.0
"""Asking polkit whether a peer may do something, over D-Bus. Imported only when somebody has to be asked about.

One short-lived connection a question, on the loop and under a deadline: a bus that hangs costs its asker a
refusal, and the daemon nothing. Whatever goes wrong on the way is a refusal, and is logged.
"""

from __future__ import annotations

from syntrop.common import dbus, journal, loop, peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from syntrop.common.peer import Peer

TIMEOUT = 10.0  # seconds for an answer that needs no user
INTERACTIVE_TIMEOUT = 120.0  # seconds for a user to type a password

_ALLOW_USER_INTERACTION = 1


async def check(who: Peer, action: str, details: Mapping[str, str], *, interactive: bool) -> bool:
    """Whether polkit lets a peer do `action` (such as `io.syntrop.model.pin`). Never raises but Cancelled."""
    try:
        with loop.deadline(INTERACTIVE_TIMEOUT if interactive else TIMEOUT):
            return await _ask(who, action, details, interactive)
    except (OSError, dbus.DBusError) as error:  # TimeoutError is an OSError
        journal.warning(f"polkit could not be asked about {action} for uid {who.uid}: {error}", ACTION=action)
        return False


async def _ask(who: Peer, action: str, details: Mapping[str, str], interactive: bool) -> bool:
    pidfd = who.pidfd
    if pidfd is None:
        journal.info(f"The process that asked for {action} is gone", ACTION=action)
        return False
    # polkit 124 and later judge by the descriptor; earlier ones by number and start time, which they find out
    # themselves where it is 0 because we cannot see it (ProtectProc=). The uid is the kernel's word in any case.
    subject = {
        "pidfd": ("h", 0),
        "pid": ("u", who.pid),
        "start-time": ("t", peer.start_time(who.pid) or 0),
        "uid": ("i", who.uid),
    }
    bus = await dbus.connect()
    try:
        reply = await bus.call(
            "org.freedesktop.PolicyKit1",
            "/org/freedesktop/PolicyKit1/Authority",
            "org.freedesktop.PolicyKit1.Authority",
            "CheckAuthorization",
            "(sa{sv})sa{ss}us",
            [
                ("unix-process", subject),
                action,
                dict(details),
                _ALLOW_USER_INTERACTION if interactive else 0,
                "",
            ],
            fds=[pidfd],
            allow_interactive=interactive,
        )
    finally:
        bus.close()
    if reply.signature != "(bba{ss})":
        raise dbus.DBusError("org.freedesktop.DBus.Error.InvalidArgs", f"polkit answered {reply.signature!r}")
    authorized, _challenge, _details = reply.body[0]
    return authorized is True
