# SPDX-License-Identifier: Apache-2.0
"""`syntropctl rollback`: take a change of toold's back."""

from __future__ import annotations

import json

from syntrop.ctl import tooling


async def rollback(rollback_id: str, as_json: bool) -> int:
    """Take it back, and tell how that is taken back."""
    reply = await tooling.ask(
        "Rollback", {"rollback_id": rollback_id, "allowInteractiveAuthentication": True}
    )
    if as_json:
        print(json.dumps(reply, indent=2))
        return 0
    print(f"taken back: {reply['restored']['summary']}")
    if reply.get("rollback_id"):
        print(f"to take that back: syntropctl rollback {reply['rollback_id']}")
    return 0
