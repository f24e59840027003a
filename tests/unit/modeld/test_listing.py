# SPDX-License-Identifier: Apache-2.0
"""The answer to `List`, kept and added to: whatever happens, it is the one that would be made from scratch."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from syntrop.modeld import disk, fsck, listing, naming
from syntrop.modeld.faults import NoSuchModel
from syntrop.modeld.rows import Listing
from syntrop.modeld.store import Store

Make = Callable[..., bytes]
NOTHING = listing.join(())


def add(store: Store, folder: Path, data: bytes, name: str | None, tag: str | None = "latest") -> str:
    path = folder / "source"
    path.write_bytes(data)
    handle = os.open(path, os.O_RDONLY)
    try:
        return store.register(handle, name, tag if name else None, None, lambda: True).digest
    finally:
        os.close(handle)


def rows(answer: bytes | None) -> list[dict[str, Any]]:
    assert answer is not None
    reply: dict[str, Any] = json.loads(answer)
    found: list[dict[str, Any]] = reply["parameters"]["models"]
    return found


def ids(answer: bytes | None) -> list[str]:
    return [entry["id"] for entry in rows(answer)]


def told(store: Store) -> list[dict[str, Any]]:
    return rows(Listing(store).answer().encoded)


def scratch(root: str) -> list[dict[str, Any]]:
    """What there is, by one who knows nothing and believes nothing."""
    return [
        {
            "id": entry.id,
            "digest": naming.digest_id(entry.digest),
            **({"name": entry.name, "tag": entry.tag} if entry.name else {}),
            "size_bytes": entry.size,
            "pinned": entry.pinned,
            "format": entry.format,
        }
        for entry in Store(root).entries()
    ]


class Blind(Store):
    """Looks at nothing but what is kept, and at what that says is to be looked at again."""

    def _read(self, stamp: object) -> Any:
        raise AssertionError("the whole store was looked through")


@pytest.fixture
def root(tmp_path: Path, gguf_file: Make) -> str:
    store = Store(str(tmp_path / "store"))
    for name in ("one", "two"):
        add(store, tmp_path, gguf_file(name), name)
    return store.root


def test_the_rows_are_what_the_format_says(root: str) -> None:
    """Where this changes, `listing.FORMAT` is to be raised: what an older version kept would be believed."""
    entry = Store(root).find(naming.parse("one"))
    assert listing.FORMAT == 1
    assert listing.split(Listing(Store(root)).answer().encoded or b"")[0].decode() == (
        f'{{"id":"one:latest","digest":"sha256:{entry.digest}","name":"one","tag":"latest",'
        f'"size_bytes":{entry.size},"pinned":false,"format":"gguf"}}'
    )


def test_from_the_first_model_on_only_changes_are_looked_at(root: str, tmp_path: Path, gguf_file: Make) -> None:
    awake = Blind(root)
    known = Listing(awake)
    assert ids(known.answer().encoded) == ["one:latest", "two:latest"]
    changes: list[Callable[[Store], object]] = [
        lambda store: add(store, tmp_path, gguf_file("three"), "three"),
        lambda store: add(store, tmp_path, gguf_file("four"), None),
        lambda store: store.tag(store.find(naming.parse("two")).digest, "one", "latest"),
        lambda store: store.pin(naming.parse("two")),
        lambda store: store.unpin(naming.parse("two")),
        lambda store: store.withdraw(store.find(naming.parse("three")).digest),
        lambda store: store.prune(0),
        lambda store: add(store, tmp_path, gguf_file("three"), "three"),
    ]
    for change in changes:
        change(Store(root))
        assert rows(known.answer().encoded) == scratch(root) == told(Blind(root))
    known.keep()
    assert listing.read(awake.listing).again == set()  # type: ignore[union-attr]
    assert rows(known.answer().encoded) == scratch(root) == told(Blind(root))
    assert not [name for name in os.listdir(root) if name.startswith(".")]


def test_what_did_not_change_is_not_made_again(root: str) -> None:
    known = Listing(Blind(root))
    answer = known.answer()
    assert known.answer() is answer
    Listing(Store(root)).keep()  # others may write it anew
    assert known.answer().encoded == answer.encoded


def test_an_opening_changes_nothing_of_it(root: str) -> None:
    known = Listing(Blind(root))
    answer = known.answer()
    os.close(Store(root).open(naming.parse("one"))[0])
    assert known.answer() is answer


def test_amid_a_change_what_was_acknowledged_is_told(root: str, tmp_path: Path, gguf_file: Make) -> None:
    store, awake = Store(root), Listing(Blind(root))
    before = rows(awake.answer().encoded)
    with store.locked():
        assert rows(awake.answer().encoded) == before
        store._again("0" * 64, "one:latest")
        assert rows(awake.answer().encoded) == before == told(Blind(root))
        # Half of it is done.
        os.rename(os.path.join(store.tags, "one", "latest"), os.path.join(store.tags, "one", "new"))
        assert "one:latest" not in ids(awake.answer().encoded)
        os.rename(os.path.join(store.tags, "one", "new"), os.path.join(store.tags, "one", "latest"))
    assert rows(awake.answer().encoded) == before == told(Blind(root))


def untag(store: Store) -> None:
    store._again(store.find(naming.parse("one")).digest)
    os.unlink(os.path.join(store.tags, "one", "latest"))
    os.rmdir(os.path.join(store.tags, "one"))


def fail(store: Store) -> None:
    untag(store)
    raise OSError("no")


def test_a_change_that_failed_is_looked_at_where_it_was_made(root: str) -> None:
    awake = Listing(Blind(root))
    before = rows(awake.answer().encoded)
    store = Store(root)
    with pytest.raises(OSError, match="no"), store.locked():
        fail(store)
    assert before != rows(awake.answer().encoded) == scratch(root) == told(Blind(root))
    assert not awake.overdue
    awake.keep()  # once all is safe
    assert told(Blind(root)) == scratch(root)


def test_a_change_that_was_killed_is_looked_for_everywhere(root: str) -> None:
    awake = Listing(Store(root))
    before = rows(awake.answer().encoded)
    process = os.fork()
    if not process:
        store = Store(root)
        with store.locked():
            untag(store)
            os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
    assert before != rows(awake.answer().encoded) == scratch(root) == told(Store(root))
    answer = awake.answer()
    assert awake.answer() is answer  # not for every asker anew
    assert awake.overdue
    awake.keep()
    assert told(Blind(root)) == scratch(root)


def test_what_was_changed_by_hand_is_seen(root: str) -> None:
    store = Store(root)
    known = Listing(store)
    known.answer()
    os.unlink(os.path.join(store.tags, "one", "latest"))
    os.rmdir(os.path.join(store.tags, "one"))
    assert rows(known.answer().encoded) == scratch(root) == told(Store(root))
    assert "one:latest" not in ids(known.answer().encoded)
    # A change does not make it true.
    store.pin(naming.parse("two"))
    assert listing.read(store.listing) is None
    assert rows(known.answer().encoded) == scratch(root) == told(Store(root))
    known.keep()
    assert told(Blind(root)) == scratch(root)


def test_what_was_changed_where_no_time_tells_is_seen_by_fsck(root: str) -> None:
    store = Store(root)
    place = os.path.join(store.tags, "one")
    os.rename(os.path.join(place, "latest"), os.path.join(place, "other"))
    assert told(Store(root)) != scratch(root)
    fsck.check(store, lambda: True, lambda _report: None)
    assert told(Store(root)) == scratch(root)
    assert "one:other" in ids(Listing(store).answer().encoded)


def test_a_name_that_named_nothing_comes_back_with_its_model(root: str, tmp_path: Path, gguf_file: Make) -> None:
    store = Store(root)
    os.unlink(os.path.join(store.blobs, store.find(naming.parse("one")).digest))
    known = Listing(store)
    assert ids(known.answer().encoded) == ["two:latest"]
    known.keep()
    add(Store(root), tmp_path, gguf_file("one"), "again")
    assert told(Blind(root)) == scratch(root)
    assert ids(Listing(Blind(root)).answer().encoded) == ["again:latest", "one:latest", "two:latest"]


def test_a_lost_one_is_made_again_and_kept(root: str) -> None:
    os.unlink(os.path.join(root, "listing"))
    store = Store(root)
    known = Listing(store)
    assert known.is_there is False
    assert rows(known.answer().encoded) == scratch(root)
    assert known.overdue
    known.keep()
    assert [known.overdue, known.is_there] == [False, True]
    assert told(Blind(root)) == scratch(root)
    # Also where nobody asked, but something was changed.
    os.unlink(os.path.join(root, "listing"))
    store.pin(naming.parse("one"))
    assert known.overdue
    known.keep()
    assert told(Blind(root)) == scratch(root)


def test_there_is_none_of_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "nowhere"))
    known = Listing(store)
    assert known.answer().encoded == NOTHING
    known.keep()
    assert known.is_there
    assert not (tmp_path / "nowhere").exists()


def test_many_changes_make_it_due_to_be_written_anew(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "TAIL_MAX", 2000)
    store = Store(root)
    known = Listing(store)
    count = 0
    while not known.overdue:
        store.pin(naming.parse("one"))
        count += 1
    assert 4 < count < 30
    assert told(Blind(root)) == scratch(root)
    known.keep()
    store.pin(naming.parse("one"))
    assert [known.overdue] == [False]


def test_a_full_disk_costs_the_list_and_not_the_change(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int, _data: object, _at: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = Store(root)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        store.pin(naming.parse("one"))
    assert listing.read(store.listing) is None
    assert told(store) == scratch(root)
    assert told(store)[0]["pinned"]


def test_one_that_cannot_be_written_leaves_none(root: str) -> None:
    known = Listing(Store(root))
    os.unlink(os.path.join(root, "listing"))
    known.answer()
    os.mkdir(os.path.join(root, ".listing"))
    with pytest.raises(IsADirectoryError):
        known.keep()
    assert not os.path.exists(os.path.join(root, "listing"))
    assert rows(known.answer().encoded) == scratch(root)


def test_one_of_another_version_is_not_believed(root: str) -> None:
    path = Path(root, "listing")
    good = path.read_bytes()
    for other in (
        b'{"version": "0.1.0", "stamp": [2, 7], "crc": 0}\n{}',
        good.replace(b'"format": 1', b'"format": 0', 1),
        good.replace(b'"bytes": ', b'"bytes": -', 1),
        b"[]\n" + good,
        b"",
    ):
        path.write_bytes(other)
        assert listing.read(str(path)) is None
        store = Store(root)
        assert told(store) == scratch(root)
        store.pin(naming.parse("one"))
        assert not path.exists()


@given(st.data())
@settings(deadline=None)
def test_damage_is_not_believed(data: st.DataObject) -> None:
    answer = listing.join([b'{"id":"a:b","digest":"sha256:%s"}' % (b"0" * 64)])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "listing")
        assert listing.write(path, answer, ["c:d"], (7, 8))
        additions = listing.Additions(path, (7, 8))
        additions.again(["0" * 64, "a:b"])
        additions.settle((7, 9))
        additions.close()
        kept = listing.read(path)
        assert kept is not None
        assert (kept.answer, kept.again, kept.loose, kept.times) == (answer, {"0" * 64, "a:b"}, {"c:d"}, (7, 9))
        whole = Path(path).read_bytes()
        at = data.draw(st.integers(0, len(whole) - 1))
        if data.draw(st.booleans()):
            broken = whole[:at]
        else:
            broken = whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :]
        Path(path).write_bytes(broken)
        kept = listing.read(path)
        # The mark alone tells nothing of the content.
        assert kept is None or kept.times != (7, 9) or (kept.answer, kept.again) == (answer, {"0" * 64, "a:b"})
        # Whoever adds to it finds that out, too: nothing is built on what is torn.
        listing.Additions(path, (7, 9)).close()
        again = listing.read(path)
        assert again is None or again.times == (7, 9)


NAMES = st.sampled_from(["a", "b", "a.b", "a-b"])
TAGS = st.sampled_from(["latest", "v1"])
NUMBERS = st.integers(0, 3)


class Changes(RuleBasedStateMachine):
    """Whatever is done, in whatever order, by whom and however it ends."""

    gguf: Callable[[str], bytes]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.root = str(self.path / "store")
        self.stores = [Store(self.root), Store(self.root)]
        self.known = [Listing(store) for store in self.stores]

    def teardown(self) -> None:
        self.folder.cleanup()

    def store(self, number: int) -> Store:
        return self.stores[number % 2]

    def model(self, number: int) -> naming.Identifier:
        from hashlib import sha256

        return naming.Identifier(digest=sha256(self.gguf(f"model {number}")).hexdigest())

    @rule(by=NUMBERS, number=NUMBERS, name=st.none() | NAMES, tag=TAGS)
    def register(self, by: int, number: int, name: str | None, tag: str) -> None:
        add(self.store(by), self.path, self.gguf(f"model {number}"), name, tag)

    @rule(by=NUMBERS, number=NUMBERS, name=NAMES)
    def register_folder(self, by: int, number: int, name: str) -> None:
        header = json.dumps({f"w{number}": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
        (self.path / "weights").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        (self.path / "config").write_bytes(b'{"model_type": "llama"}')
        handles = {
            "model.safetensors": os.open(self.path / "weights", os.O_RDONLY),
            "config.json": os.open(self.path / "config", os.O_RDONLY),
        }
        try:
            if number % 2:
                self.store(by).register_folder(handles, name, "latest", None, lambda: True)
            else:
                self.store(by).register(handles["model.safetensors"], None, None, None, lambda: True)
        finally:
            for handle in handles.values():
                os.close(handle)

    @rule(by=NUMBERS, number=NUMBERS, name=NAMES, tag=TAGS)
    def tag(self, by: int, number: int, name: str, tag: str) -> None:
        try:
            self.store(by).tag(self.model(number).digest or "", name, tag)
        except NoSuchModel:
            pass

    @rule(by=NUMBERS, number=NUMBERS, on=st.booleans())
    def pin(self, by: int, number: int, on: bool) -> None:
        store = self.store(by)
        try:
            (store.pin if on else store.unpin)(self.model(number))
        except NoSuchModel:
            pass

    @rule(by=NUMBERS, number=NUMBERS)
    def use(self, by: int, number: int) -> None:
        try:
            os.close(self.store(by).open(self.model(number))[0])
        except NoSuchModel:
            pass

    @rule(by=NUMBERS, limit=st.sampled_from([0, 500, 1000]))
    def prune(self, by: int, limit: int) -> None:
        self.store(by).prune(limit)

    @rule(by=NUMBERS, number=NUMBERS)
    def withdraw(self, by: int, number: int) -> None:
        self.store(by).prepare()
        self.store(by).withdraw(self.model(number).digest or "")

    @rule(by=NUMBERS)
    def tidy(self, by: int) -> None:
        self.store(by).prepare()
        fsck.tidy(self.store(by), fsck.Report(0))

    @rule(number=NUMBERS)
    def by_hand(self, number: int) -> None:
        try:
            os.unlink(os.path.join(self.stores[0].blobs, self.model(number).digest or ""))
        except FileNotFoundError:
            pass

    @rule(by=NUMBERS)
    def broken_off(self, by: int) -> None:
        self.store(by).prepare()
        with pytest.raises(OSError, match="no"), self.store(by).locked():
            raise OSError("no")

    @rule(by=NUMBERS)
    def keep(self, by: int) -> None:
        self.known[by % 2].keep()

    @rule(data=st.data())
    def tear(self, data: st.DataObject) -> None:
        path = self.path / "store/listing"
        if path.exists():
            os.truncate(path, data.draw(st.integers(0, path.stat().st_size)))

    @rule(by=NUMBERS)
    def wake(self, by: int) -> None:
        self.stores[by % 2] = Store(self.root)
        self.known[by % 2] = Listing(self.stores[by % 2])

    @invariant()
    def is_true(self) -> None:
        expected = scratch(self.root)
        for known in (*self.known, Listing(Store(self.root))):
            assert rows(known.answer().encoded) == expected


def test_after_any_changes_it_is_what_there_is(gguf_file: Make) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    class Machine(Changes):
        gguf = staticmethod(gguf_file)

    run_state_machine_as_test(Machine, settings=settings(max_examples=30, stateful_step_count=25, deadline=None))


@pytest.mark.parametrize(
    ("note", "format"),
    [
        (b"", "gguf"),
        (b'{"format": "gg', "gguf"),
        (b'{"format":"gguf","metadata":{}}', "gguf"),
        (b'{"metadata": {}, "format": "gguf"}', "gguf"),
        (b'{"format": "", "metadata": {}}', ""),  # as somebody wrote it by hand
        (b'{"format": "gguf", "metadata": {"licence": "' + b"x" * 5000 + b'"}}', "gguf"),
        (b"\xff" * 100, "gguf"),
        (None, "gguf"),
    ],
)
def test_the_format_is_read_whatever_became_of_the_note(root: str, note: bytes | None, format: str) -> None:
    """From its first bytes where the store wrote it; else from all of it, or from the model."""
    path = next(Path(root, "notes").iterdir())
    path.unlink()
    if note is not None:
        path.write_bytes(note)
    Path(root, "listing").unlink(missing_ok=True)
    digest = naming.digest_id(path.stem)
    [entry] = [entry for entry in told(Store(root)) if entry["digest"] == digest]
    assert entry["format"] == format
