# SPDX-License-Identifier: Apache-2.0
"""Nothing stays behind of requests, whether they are answered or left: the bench does the same at forty times the
length (`tests/bench/router`)."""

from __future__ import annotations

from place import FAR, LOCAL, PHASES, Place, descriptors, hang_up, requests, resident, settled

GROWTH = 2.0  # MiB
KEPT = 4  # connections to who answers that may be there, or not


def test_requests_and_hang_ups_leave_nothing() -> None:
    place = Place()
    try:
        found = []
        for count, leaves in ((1_000, 10 * PHASES), (5_000, 72 * PHASES)):
            for model in (FAR, LOCAL):
                requests(place.address[1], model, count // 2)
            for turn in range(leaves):
                hang_up(place.address, turn)
            settled(lambda: place.at_rest)
            found.append((resident(place.pid), descriptors(place.pid)))
        (before, fds_before), (after, fds_after) = found
        assert after - before <= GROWTH, found
        assert fds_after - fds_before <= KEPT, found
        assert "Traceback" not in place.router.log()
        assert "nobody waited" not in place.router.log()
    finally:
        place.close()
