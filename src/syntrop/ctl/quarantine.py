# SPDX-License-Identifier: Apache-2.0
"""`syntropctl quarantine`: a faulty plane taken out of use, and back."""

from __future__ import annotations

import json

from syntrop.common.varlink.errors import VarlinkError
from syntrop.ctl import arbiter
from syntrop.ctl.output import fail


async def quarantine(plane: str, reason: str | None, *, clear: bool, as_json: bool) -> int:
    """Put a plane into quarantine, or take it out; the exit status."""
    method = "ClearQuarantine" if clear else "QuarantinePlane"
    parameters: dict[str, object] = {"plane": plane, "allowInteractiveAuthentication": True}
    if reason is not None and not clear:
        parameters["reason"] = reason
    try:
        found = await arbiter.ask(method, parameters)
    except VarlinkError as error:
        if error.error != f"{arbiter.ENDPOINT}.PlaneNotFound":
            raise
        return fail(f"there is no plane {plane}; `syntropctl devices` lists them")
    if as_json:
        print(json.dumps(found, indent=2))
    elif clear:
        print(f"{plane} may be used again")
    else:
        gone = found["revoked_leases"]
        count = "1 lease was" if len(gone) == 1 else f"{len(gone)} leases were"
        print(f"nothing is placed on {plane} any more; {count} revoked")
        for one in gone:
            print(f"  {one}")
    return 0
