# SPDX-License-Identifier: Apache-2.0
"""The control groups that the service manager lends us (`Delegate=yes`): one for the daemon, others for tools."""

from __future__ import annotations

import os

from syntrop.common import cgroup, journal

OURS = "toold.service"
_WANTED = ("memory", "pids", "cpu")


def take() -> str | None:
    """Folder that takes the groups of tools; None where none was delegated. Moves this process into a group of its
    own: one that has children with controllers may not hold processes itself.
    """
    try:
        own = cgroup.of_pid(0)
        if os.path.basename(own.path) == "daemon" and own.unit() == OURS:
            top = cgroup.Group(os.path.dirname(own.path))
        elif own.unit() == OURS and os.path.basename(own.path) == OURS:
            top = own
        else:
            return None  # somebody else's group: a session, or the activator's
        if not os.access(os.path.join(top.folder, "cgroup.procs"), os.W_OK):
            return None
        if top.path == own.path:
            own.child("daemon").add(0)
        tools = top.child("tools")
        wanted = [name for name in _WANTED if name in top.controllers()]
        top.enable(*wanted)
        tools.enable(*wanted)
        return tools.folder
    except cgroup.NotUnified:
        return None
    except cgroup.CgroupError as error:
        journal.warning(f"Tools get no control group of their own: {error}")
        return None
