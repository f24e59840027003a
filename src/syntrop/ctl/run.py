# SPDX-License-Identifier: Apache-2.0
"""`syntropctl run`: run one of toold's tools, or list them."""

from __future__ import annotations

import json
import sys

from syntrop.ctl import tooling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


async def show(as_json: bool) -> int:
    """List the tools."""
    tools = (await tooling.ask("ListTools", {}))["tools"]
    if as_json:
        print(json.dumps(tools, indent=2))
        return 0
    for tool in tools:
        print(f"{tool['name']:<18} {tool['mode']:<12} {tool['description']}")
        print(f"    syntropctl run {usage(tool)}")
        if tool["mode"] != "safe":
            print(f"    undone: {tool.get('undone') or 'not'}")
    return 0


def usage(tool: dict[str, Any]) -> str:
    """What a tool takes, as a line of help."""
    words = [tool["name"]]
    unit = tool.get("unit") or "none"
    if unit != "none":
        words.append("--unit UNIT" if unit == "needed" else "[--unit UNIT]")
    for parameter in tool.get("parameters") or ():
        name = parameter["name"].upper()
        words.append(f"[{name}]" if parameter["optional"] else name)
    return " ".join(words)


async def execute(name: str, arguments: Sequence[str], unit: str | None, as_json: bool) -> int:
    """Run a tool; its own exit status."""
    parameters: dict[str, Any] = {"name": name, "args": list(arguments), "allowInteractiveAuthentication": True}
    if unit is not None:
        # As `systemctl` completes it; what is no name of a unit at all is refused by toold.
        parameters["target_unit"] = unit if "." in unit or not unit else f"{unit}.service"
    reply = await tooling.ask("ExecuteTool", parameters)
    result = reply["result"]
    if as_json:
        print(json.dumps(reply, indent=2))
    else:
        sys.stdout.write(result["stdout"])
        sys.stderr.write(result["stderr"])
        if not (result["stdout"] or result["stderr"] or result["exit_code"]):
            print("nothing to show", file=sys.stderr)
        if reply.get("rollback_id"):
            print(f"to take it back: syntropctl rollback {reply['rollback_id']}")
    status: int = result["exit_code"]
    return min(status, 255)
