# SPDX-License-Identifier: Apache-2.0
"""contextd: no recorded event is lost, none is told twice, and every difference has both its sides."""

from __future__ import annotations

import os
from collections.abc import Callable

from crashlab.explore import Scenario
from proofs import Proofs

from syntrop.contextd import baseline as baseline_module
from syntrop.contextd import ledger
from syntrop.contextd import objects as objects_module
from syntrop.contextd.baseline import Baseline
from syntrop.contextd.chronology import Chronology, Draft
from syntrop.contextd.keeper import Keeper, Options
from syntrop.contextd.objects import Objects
from syntrop.contextd.snapshot import Snapshot

Acknowledge = Callable[[str], None]
RING = 20  # events; a segment holds a tenth


def store(root: str, name: str = "") -> str:
    """Path of a part of the store, for a process that has just begun."""
    ledger._settled.clear()
    baseline_module.SHARDS = objects_module.SHARDS = 4  # each is read for every case
    return os.path.join(root, "store", name).rstrip("/")


# --- the chronology ------------------------------------------------------------------------------------------


def chronology(root: str) -> Chronology:
    return Chronology(store(root, "chronology"), events_max=RING)


def prepare_ring(root: str) -> None:
    ring = chronology(root)
    for number in range(1, RING + 1):
        ring.append([Draft("test", f"event {number}", details=f"details {number}")])


def prepare_nothing(root: str) -> None:
    pass


def record(root: str, acknowledge: Acknowledge) -> None:
    ring = chronology(root)
    for _ in range(3):
        first = ring._next
        drafts = [Draft("test", f"event {n}", details=f"details {n}" * 20) for n in (first, first + 1)]
        for event in ring.append(drafts):
            acknowledge(str(event.number))


def check_ring(root: str, acked: tuple[str, ...]) -> None:
    ring = chronology(root)
    numbers = [event.number for event in ring.events]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else not acked, f"gaps: {numbers}"
    for event in ring.events:
        assert event.summary == f"event {event.number}"
        assert (ring.details(event) or "").startswith(f"details {event.number}")
    for one in acked:
        assert int(one) in numbers or int(one) <= numbers[-1] - RING, f"event {one} is lost"
    [more] = ring.append([Draft("test", f"event {ring._next}", details=f"details {ring._next}")])
    again = chronology(root).events
    assert [event.number for event in again] == [*numbers, more.number][-RING:]


def prepare_told(root: str) -> None:
    chronology(root).append([Draft("test", f"event {n}", details=f"details {n}") for n in (1, 2)])


def tell(root: str, acknowledge: Acknowledge) -> None:
    """What is seen is told, also what a predecessor was killed over; and the first time there is something new."""
    ring = chronology(root)
    ring.append([])
    for event in ring.events:
        acknowledge(str(event.number))
    if len(ring.events) < 3:  # in a segment of their own
        ring.append([Draft("test", f"event {n}", details=f"details {n}") for n in (ring.last + 1, ring.last + 2)])


# --- contents and the baseline -------------------------------------------------------------------------------

# In the same pack (the first byte of their digests) and, for the paths, in the same ledger.
CONTENTS = [b"old content\n" * 30, b"new content\n" * 30, b"another\n", b"and one more\n"]


def objects(root: str) -> Objects:
    return Objects(store(root, "objects"))


def prepare_objects(root: str) -> None:
    objects(root).put(CONTENTS[:2])


def keep(root: str, acknowledge: Acknowledge) -> None:
    kept = objects(root)
    kept.put(CONTENTS)
    acknowledge("kept")
    kept.keep_only({bytes.fromhex(one) for one in digests()[1:]})
    acknowledge("forgotten")


def digests() -> list[str]:
    import hashlib

    return [hashlib.sha256(one).hexdigest() for one in CONTENTS]


def check_objects(root: str, acked: tuple[str, ...]) -> None:
    kept = objects(root)
    found = [kept.get(one) for one in digests()]
    assert all(one in (None, content) for one, content in zip(found, CONTENTS, strict=True))
    assert found[1] == CONTENTS[1], "what was safe is lost"
    assert "kept" not in acked or found[1:] == CONTENTS[1:], "a content is lost"
    assert "forgotten" not in acked or found[0] is None, "what was forgotten came back"
    kept.put(CONTENTS)
    assert [objects(root).get(one) for one in digests()] == CONTENTS


def check_first_objects(root: str, acked: tuple[str, ...]) -> None:
    kept = objects(root)
    found = [kept.get(one) for one in digests()]
    assert all(one in (None, content) for one, content in zip(found, CONTENTS, strict=True))
    assert not acked or found[1:] == CONTENTS[1:], "a content is lost"
    kept.put(CONTENTS)
    assert [objects(root).get(one) for one in digests()] == CONTENTS


def baseline(root: str) -> Baseline:
    return Baseline(store(root, "baseline"))


def row(root: str, name: str, text: str) -> Snapshot:
    from syntrop.contextd import snapshot

    path = os.path.join(root, "etc", name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    taken = snapshot.take(path, f"/etc/{name}", bytes(32))
    assert taken is not None
    return taken[0]


def prepare_baseline(root: str) -> None:
    os.mkdir(os.path.join(root, "etc"))
    rows = baseline(root)
    rows.put({f"/etc/{n}": row(root, str(n), "old") for n in range(3)})
    for text in range(255):
        rows.put({"/etc/0": row(root, "0", "x" * text)})


def put(root: str, acknowledge: Acknowledge) -> None:
    rows = baseline(root)
    for text in range(3):  # in the midst of which it is rewritten, since it has become too long
        rows.put({"/etc/1": row(root, "1", "y" * (500 + text)), "/etc/2": None})
        acknowledge(str(500 + text))


def check_baseline(root: str, acked: tuple[str, ...]) -> None:
    rows = baseline(root)
    found = rows.folder("/etc")
    assert found["0"].size == 254, "a row is lost"
    sizes = [3, 500, 501, 502][len(acked) :]
    assert found["1"].size in sizes, f"the row of {sorted(acked)} is lost: {rows['1'].size}"
    assert not acked or "2" not in found, "a file came back"
    rows.put({"/etc/new": row(root, "new", "new")})
    assert baseline(root).get("/etc/new") is not None


def clear(root: str, acknowledge: Acknowledge) -> None:
    baseline(root).clear()
    acknowledge("cleared")


def check_cleared(root: str, acked: tuple[str, ...]) -> None:
    assert not acked or not os.listdir(store(root, "baseline")), "what was forgotten came back"
    rows = baseline(root)
    rows.put({"/etc/new": row(root, "new", "new")})
    assert baseline(root).get("/etc/new") is not None


# --- the keeper ----------------------------------------------------------------------------------------------


def keeper(root: str) -> Keeper:
    os.environ["SYNTROP_HOST_ROOT"] = os.path.join(root, "host")
    one = Keeper(store(root), Options(("/etc",), fanotify=False))
    one.open()
    return one


def prepare_host(root: str) -> None:
    os.makedirs(os.path.join(root, "host", "etc"))
    write(root, "before\n")
    one = keeper(root)
    with one.lock.urgent:
        one.look_into("/etc")
        one._progress["scanned"] = ["/etc"]
        one._save_progress()


def write(root: str, text: str) -> None:
    path = os.path.join(root, "host", "etc", "app.conf")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def look(root: str, acknowledge: Acknowledge) -> None:
    write(root, "after\n")
    one = keeper(root)
    with one.lock.urgent:
        if one.look(["/etc/app.conf"]):
            acknowledge("seen")
        [event] = one.record([Draft("operator", "noted")])
    acknowledge(f"noted {event.number}")


def prepare_files(root: str) -> None:
    os.makedirs(os.path.join(root, "host", "etc"))
    write(root, "before\n")


def first_look(root: str, acknowledge: Acknowledge) -> None:
    one = keeper(root)
    one.scan(lambda: True, lambda folder, names: None)
    if one._progress["scanned"]:  # else the disk failed meanwhile
        acknowledge("looked")


def check_first_look(root: str, acked: tuple[str, ...]) -> None:
    if acked:
        with open(os.path.join(root, "host", "etc", "new.conf"), "w", encoding="utf-8") as file:
            file.write("new\n")
        write(root, "later\n")
    one = keeper(root)
    one.scan(lambda: True, lambda folder, names: None)
    events = [event for event in one.chronology.events if event.source == "file"]
    told = sorted(event.summary for event in events)
    new = ["/etc/app.conf changed", "/etc/new.conf was created (4 bytes)"] if acked else []
    assert told == new, f"what is new and what is not: {told}"
    details = [one.chronology.details(event) or "" for event in events]
    # What the file was is kept, so that the difference has both its sides.
    both = any("-before" in text and "+later" in text for text in details)
    assert both or not acked, f"not both sides: {details}"


def check_keeper(root: str, acked: tuple[str, ...]) -> None:
    with open(os.path.join(root, "host", "etc", "app.conf"), encoding="utf-8") as file:
        written = file.read()
    if written != "after\n":  # else not again: a new file would have its content kept anew
        write(root, "after\n")
    one = keeper(root)
    told = [event for event in one.chronology.events if event.source == "file"]
    assert "seen" not in acked or len(told) == 1, "the change is lost"
    with one.lock.urgent:
        one.look_into("/etc")
    told = [event for event in one.chronology.events if event.source == "file"]
    assert len(told) == 1, f"told {len(told)} times"
    details = one.chronology.details(told[0]) or ""
    assert "-before" in details and "+after" in details, f"not both sides: {details}"
    noted = [event for event in one.chronology.events if event.source == "operator"]
    for text in acked:
        if text.startswith("noted"):
            assert int(text.split()[1]) in [event.number for event in noted], "a recorded event is lost"
    # The next difference has both its sides too: what the file was is kept.
    write(root, "later\n")
    one = keeper(root)
    with one.lock.urgent:
        one.look_into("/etc")
    details = one.chronology.details(one.chronology.events[-1]) or ""
    assert "-after" in details and "+later" in details, f"not both sides: {details}"


def check_changed_back(root: str, acked: tuple[str, ...]) -> None:
    write(root, "before\n")
    one = keeper(root)
    with one.lock.urgent:
        one.look_into("/etc")
    told = [event for event in one.chronology.events if event.source == "file"]
    # Before it was acknowledged it may be on record and not in the baseline: then nothing has changed since.
    assert len(told) in ((2,) if "seen" in acked else (0, 1, 2)), f"told {len(told)} times"


def check_changed_again(root: str, acked: tuple[str, ...]) -> None:
    """Whatever the baseline names is kept: nobody looks at the file before it changes once more."""
    write(root, "later\n")
    with open(os.path.join(root, "host", "etc", "new.conf"), "w", encoding="utf-8") as file:
        file.write("new\n")
    one = keeper(root)
    with one.lock.urgent:
        one.look_into("/etc")
    told = [event for event in one.chronology.events if event.source == "file"]
    new = [event.summary for event in told if event.extra["path"] == "/etc/new.conf"]
    assert new == ["/etc/new.conf was created (4 bytes)"], "what had been looked at is forgotten"
    told = [event for event in told if event.extra["path"] == "/etc/app.conf"]
    assert len(told) == 2 or (len(told) == 1 and "seen" not in acked), f"told {len(told)} times"
    details = one.chronology.details(told[-1]) or ""
    sides = ("-after",) if "seen" in acked and "kept" in acked else ("-before", "-after")
    assert any(side in details for side in sides) and "+later" in details, f"not both sides: {details}"


def answer(root: str, acknowledge: Acknowledge) -> None:
    """As GetUnitContext does: told first, kept when the caller has its reply."""
    write(root, "after\n")
    one = keeper(root)
    with one.lock.urgent:
        if one.survey(["/etc/app.conf"], ["/etc"], None):
            acknowledge("seen")
    with one.lock.urgent:
        one.finish()
        one.close()
    acknowledge("kept")


class TestStores(Proofs):
    SCENARIOS = (
        Scenario("ring", prepare_ring, record, check_ring),
        Scenario("ring from nothing", prepare_nothing, record, check_ring),
        Scenario("ring, and told", prepare_told, tell, check_ring),
        Scenario("ring from nothing, and told", prepare_nothing, tell, check_ring),
        Scenario("objects", prepare_objects, keep, check_objects),
        Scenario("objects from nothing", prepare_nothing, keep, check_first_objects),
        Scenario("baseline", prepare_baseline, put, check_baseline),
        Scenario("clear", prepare_baseline, clear, check_cleared),
        Scenario("first look", prepare_files, first_look, check_first_look),
        Scenario("keeper", prepare_host, look, check_keeper),
        Scenario("keeper, and changed back", prepare_host, look, check_changed_back),
        Scenario("keeper, and changed again", prepare_host, look, check_changed_again),
        Scenario("answer", prepare_host, answer, check_keeper),
        Scenario("answer, and changed again", prepare_host, answer, check_changed_again),
    )
    SOURCES = ("src/syntrop/contextd",)
