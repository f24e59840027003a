# SPDX-License-Identifier: Apache-2.0
"""`syntropctl history`: changes of toold's that can be taken back."""

from __future__ import annotations

import json
import time

from syntrop.ctl import tooling


async def history(since: int, limit: int, as_json: bool) -> int:
    """List them, newest first."""
    records = (await tooling.ask("ListRollbacks", {"since_seconds": since, "limit": limit}))["records"]
    if as_json:
        print(json.dumps(records, indent=2))
        return 0
    if not records:
        print("nothing was changed in this time")
    for one in records:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["timestamp_us"] / 1e6))
        unit = f"  ({one['target_unit']})" if one.get("target_unit") else ""
        print(f"{when}  {one['id']}  {one['summary']}{unit}")
    return 0
