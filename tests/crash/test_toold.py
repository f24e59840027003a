# SPDX-License-Identifier: Apache-2.0
"""toold: a change is made or not, what is acknowledged can be taken back, and the audit log is one chain."""

from __future__ import annotations

import os
from collections.abc import Callable

from crashlab.explore import Scenario
from proofs import Proofs

from syntrop.toold import audit, undo
from syntrop.toold import image as images
from syntrop.toold.image import FILE, Image
from syntrop.toold.undo import Record, Step

Acknowledge = Callable[[str], None]

LARGE = bytes(range(256)) * 300  # more than a record holds itself
AUDIT_FILE_MAX = 1000


def target(root: str, name: str) -> str:
    return os.path.join(root, "etc", name)


def journal(root: str) -> str:
    return os.path.join(root, "state")


def prepare(root: str) -> None:
    os.makedirs(target(root, "unit.d"))
    os.mkdir(journal(root))
    for name, content in (("large", LARGE), ("small", b"before\n"), ("unit.d/drop.conf", b"[Service]\n")):
        with open(target(root, name), "wb") as file:
            file.write(content)
    os.chmod(target(root, "small"), 0o604)
    os.setxattr(target(root, "small"), "user.note", b"kept")
    os.symlink("small", target(root, "link"))
    os.chmod(target(root, "unit.d"), 0o750)
    os.mkdir(target(root, "empty"), 0o700)
    os.chmod(target(root, "empty"), 0o711)


def images_now(root: str) -> dict[str, Image]:
    names = ("large", "small", "new", "link", "unit.d/drop.conf", "unit.d", "empty")
    return {name: images.capture(target(root, name)) for name in names}


def plan(root: str) -> Record:
    """Contents replaced, a file made; a link, a file and a folder removed."""
    before = images_now(root)
    after = {
        "large": images.of_content(LARGE[::-1], before["small"]),
        "small": images.of_content(b"after\n", before["small"]),
        "new": images.of_content(b"new\n", before["small"]),
        "link": Image(),
        "unit.d/drop.conf": Image(),
        "unit.d": Image(),
        "empty": Image(),
    }
    steps = [Step(target(root, name), before[name], after[name]) for name in before]
    return Record(tool="test", summary="Changed everything", steps=steps)


def make(root: str, record: Record) -> None:
    undo.prepare(journal(root), record)
    undo.carry_out(record)
    undo.commit(journal(root), record)


def change(root: str, acknowledge: Acknowledge) -> None:
    undo.recover(journal(root))
    made = undo.listing(journal(root))
    if made:  # when it is done again: a repeated call is told what it was
        acknowledge(made[0].id)
        return
    record = plan(root)
    make(root, record)
    acknowledge(record.id)


def prepare_changed(root: str) -> None:
    prepare(root)
    change(root, lambda _: None)


def take_back(root: str, acknowledge: Acknowledge) -> None:
    undo.recover(journal(root))
    [first] = [one for one in undo.listing(journal(root)) if one.tool == "test"]
    made = [one for one in undo.listing(journal(root)) if one.undoes == first.id]
    record = made[0] if made else undo.reverse(first)
    if not made:
        make(root, record)
    acknowledge(record.id)


def prepare_cut_short(root: str) -> None:
    prepare(root)
    record = plan(root)
    undo.prepare(journal(root), record)
    for index, step in enumerate(record.steps[:-1]):
        images.restore(step.after, step.path, f".{record.id}-{index}.tmp")


def recover(root: str, acknowledge: Acknowledge) -> None:
    outcomes = undo.recover(journal(root))
    assert all(not failure for _, failure in outcomes), outcomes
    acknowledge("recovered")


def prepare_several(root: str) -> None:
    prepare(root)
    for text in (b"first", b"second"):
        before = images.capture(target(root, "large"))
        after = images.of_content(text * 20000, before)
        make(root, Record(tool="test", summary="", steps=[Step(target(root, "large"), before, after)]))


def retire(root: str, acknowledge: Acknowledge) -> None:
    undo.recover(journal(root))
    undo.retire(journal(root), count=1, total_bytes=1 << 30, age_sec=1e9, now_us=0)
    acknowledge("retired")


def state_of(root: str) -> str:
    """Whether everything is as before the change or as after it; raises AssertionError for a mixture."""
    now = images_now(root)
    contents = {name: one.data() if one.kind == FILE else one.kind.encode() for name, one in now.items()}
    if contents["small"] == b"before\n":
        assert contents["large"] == LARGE and contents["new"] == b"absent", contents
        assert contents["unit.d/drop.conf"] == b"[Service]\n" and now["link"].target == "small", contents
        assert now["unit.d"].mode == 0o750 and now["empty"].mode == 0o711
        state = "before"
    else:
        assert contents["small"] == b"after\n" and contents["large"] == LARGE[::-1], contents
        assert contents["new"] == b"new\n", contents
        names = ("link", "unit.d/drop.conf", "unit.d", "empty")
        assert [contents[name] for name in names] == [b"absent"] * len(names), contents
        state = "after"
    assert now["small"].mode == 0o604 and now["small"].xattrs == {"user.note": b"kept"}
    return state


def sound(root: str) -> str:
    """Start as toold does, and look; every record that there is reads and has all its contents."""
    for record, failure in undo.recover(journal(root)):
        assert not failure, f"{record.id}: {failure}"
    assert not undo.unfinished(journal(root))
    folder = os.path.join(journal(root), undo.FOLDER_NAME)
    names = os.listdir(folder)
    assert not [name for name in names if name.endswith((undo.OPEN, undo.FAILED, ".tmp"))], names
    for name in names:
        if name.endswith(undo.DONE):
            for step in undo.find(journal(root), name.removesuffix(undo.DONE)).steps:
                step.before.data()
                if step.after is not None:
                    step.after.data()
    litter = [name for name in os.listdir(os.path.join(root, "etc")) if name.endswith(".tmp")]
    assert not litter, litter
    return state_of(root) if not os.path.exists(target(root, "several")) else ""


def check_changed(root: str, acked: tuple[str, ...]) -> None:
    state = sound(root)
    done = undo.listing(journal(root))
    assert state == "after" if done else state == "before", f"{state}, with {len(done)} records"
    for one in acked:
        record = undo.find(journal(root), one)
        assert state == "after", "an acknowledged change is lost"
        make(root, undo.reverse(record))
        for step in record.steps:
            images.verify(step.before, step.path)
        assert sound(root) == "before"


def check_taken_back(root: str, acked: tuple[str, ...]) -> None:
    state = sound(root)
    [first] = [one for one in undo.listing(journal(root)) if one.tool == "test"]
    undone = [one for one in undo.listing(journal(root)) if one.undoes == first.id]
    assert state == ("before" if undone else "after"), f"{state}, with {len(undone)} records"
    for one in acked:
        assert undo.find(journal(root), one).undoes == first.id
        for step in first.steps:
            images.verify(step.before, step.path)


def check_recovered(root: str, acked: tuple[str, ...]) -> None:
    assert sound(root) == "before"
    assert not undo.listing(journal(root))


def check_retired(root: str, acked: tuple[str, ...]) -> None:
    undo.unfinished(journal(root))
    done = undo.listing(journal(root))
    assert 1 <= len(done) <= (1 if acked else 2), "what was forgotten came back"
    for record in done:
        assert len(record.steps[0].before.data()) > 60000, "a record without its contents"
    blobs = [name for name in os.listdir(os.path.join(journal(root), undo.FOLDER_NAME)) if "blobs" in name]
    assert {name.partition(".")[0] for name in blobs} == {record.id for record in done}, "litter"


# --- the audit log -------------------------------------------------------------------------------------------


def prepare_audit(root: str) -> None:
    log = audit.Log(root)
    for number in range(2):
        log.append("before", {"number": number}, sync=True)
    log.close()


def prepare_nothing(root: str) -> None:
    pass


def append(root: str, acknowledge: Acknowledge) -> None:
    audit.FILE_MAX = AUDIT_FILE_MAX  # in a child, whose alone it is
    log = audit.Log(root)
    for number in range(2):
        log.append("safe", {"number": number}, sync=False)
        log.append("careless", {"number": number}, sync=False)
        entry = log.append("changing", {"number": number}, sync=True)
        acknowledge(f"{entry['seq']} {entry['hash']}")
    log.close()


def check_audit(root: str, acked: tuple[str, ...]) -> None:
    log = audit.Log(root)
    log.append("goes on", {}, sync=True)
    log.close()
    hashes = {entry["seq"]: entry["hash"] for entry in audit.read(root)}
    for one in acked:
        sequence, digest = one.split()
        assert hashes.get(int(sequence)) == digest, f"entry {sequence} is lost"


class TestChanges(Proofs):
    SCENARIOS = (
        Scenario("change", prepare, change, check_changed),
        Scenario("take back", prepare_changed, take_back, check_taken_back),
        Scenario("recover", prepare_cut_short, recover, check_recovered, (OSError, AssertionError)),
        Scenario("retire", prepare_several, retire, check_retired),
        Scenario("audit", prepare_audit, append, check_audit),
        Scenario("audit from nothing", prepare_nothing, append, check_audit),
    )
    SOURCES = ("src/syntrop/toold",)
