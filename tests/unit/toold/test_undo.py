# SPDX-License-Identifier: Apache-2.0
"""Images and the rollback journal: what was there comes back as it was, whatever happens in between.

Power loss and kills at every system call are `tests/crash`'s; here are the rules.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syntrop.toold import image, undo
from syntrop.toold.image import ABSENT, FILE, FOLDER, LINK, Image, ImageError, Mismatch, Unrestorable
from syntrop.toold.undo import Record, Step

OLD = 1_700_000_000_123_456_789  # a time with nanoseconds


def attributes(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    xattrs = {
        name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)
    }
    return stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns, xattrs


def made(path: Path, content: bytes = b"content", mode: int = 0o640) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    os.setxattr(path, "user.note", b"\0kept\xff")
    if os.geteuid() == 0:
        os.chown(path, 12, 34)
    os.utime(path, ns=(OLD, OLD))
    return path


def test_a_file_comes_back_whole(tmp_path: Path) -> None:
    path = made(tmp_path / "file")
    before, kept = attributes(path), image.capture(str(path))
    path.unlink()
    path.write_text("another")
    image.restore(kept, str(path), ".temporary")
    assert path.read_bytes() == b"content"
    assert attributes(path) == before
    image.verify(kept, str(path))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "change",
    [
        "content",
        "mode",
        pytest.param("owner", marks=pytest.mark.root),
        "time",
        "xattr",
        "gone",
        "link",
        "extra xattr",
    ],
)
def test_a_difference_is_seen(tmp_path: Path, change: str) -> None:
    path = made(tmp_path / "file")
    kept = image.capture(str(path))
    image.verify(kept, str(path))
    if change == "content":
        path.write_bytes(b"CONTENT")
        os.utime(path, ns=(OLD, OLD))
    elif change == "mode":
        path.chmod(0o600)
    elif change == "owner":
        os.chown(path, 1, 2)
    elif change == "time":
        os.utime(path, ns=(OLD, OLD + 1))
    elif change == "xattr":
        os.setxattr(path, "user.note", b"other")
    elif change == "extra xattr":
        os.setxattr(path, "user.more", b"")
    else:
        path.unlink()
        if change == "link":
            path.symlink_to("elsewhere")
    with pytest.raises(Mismatch):
        image.verify(kept, str(path))
    image.restore(kept, str(path), ".temporary")
    image.verify(kept, str(path))


def test_links_and_folders_and_absence(tmp_path: Path) -> None:
    link, folder, nothing = tmp_path / "link", tmp_path / "folder", tmp_path / "nothing"
    link.symlink_to("/nowhere")
    folder.mkdir(0o710)
    kept = {path: image.capture(str(path)) for path in (link, folder, nothing)}
    assert [one.kind for one in kept.values()] == [LINK, FOLDER, ABSENT]
    link.unlink()
    folder.rmdir()
    nothing.write_text("something")
    for path, one in kept.items():
        image.restore(one, str(path), ".temporary")
        image.verify(one, str(path))
    assert os.readlink(link) == "/nowhere"
    assert not nothing.exists()


@pytest.mark.root
@pytest.mark.parametrize("kind", [FILE, LINK, FOLDER])
def test_the_label_comes_back(tmp_path: Path, kind: str) -> None:
    """SELinux's, which is an extended attribute wherever SELinux is."""
    path, label = tmp_path / "labelled", b"system_u:object_r:etc_t:s0\0"
    if kind == LINK:
        path.symlink_to("elsewhere")
    elif kind == FOLDER:
        path.mkdir()
    else:
        path.write_text("content")
    os.setxattr(path, "security.selinux", label, follow_symlinks=False)
    kept = image.capture(str(path))
    if kind == FOLDER:
        path.rmdir()
    else:
        path.unlink()
    image.restore(kept, str(path), ".temporary")
    image.verify(kept, str(path))
    assert os.getxattr(path, "security.selinux", follow_symlinks=False) == label
    os.setxattr(path, "security.selinux", b"other\0", follow_symlinks=False)
    with pytest.raises(Mismatch):
        image.verify(kept, str(path))


@pytest.mark.root
def test_a_label_that_could_not_be_set_again_is_seen_before_anything_is_touched() -> None:
    """By the account that toold has, where there is no SELinux to allow it."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        path = made(Path(folder, "file"), mode=0o644)
        os.setxattr(path, "security.selinux", b"system_u:object_r:etc_t:s0\0")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ["SYNTROP_SYS_ROOT"] = folder
                os.setuid(65534)
                image.capture(str(path))
            except Unrestorable as error:
                code = 0 if "security.selinux" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_could_not_be_put_back_is_not_touched(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Unrestorable):
        image.capture(str(tmp_path / "fifo"))
    program = tmp_path / "program"
    program.write_text("x")
    program.chmod(0o4755)
    with pytest.raises(Unrestorable, match="set-id"):
        image.capture(str(program))
    (tmp_path / "large").write_bytes(b"x" * 100)
    with pytest.raises(Unrestorable, match="100 bytes"):
        image.capture(str(tmp_path / "large"), bytes_max=99)


def test_no_link_on_the_way_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(ImageError, match="link"):
        image.capture(str(tmp_path / "link" / "file"))
    with pytest.raises(ImageError):
        image.restore(Image(), str(tmp_path / "link" / "file"), ".temporary")
    assert (tmp_path / "real" / "file").exists()


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a//b", "/a/.", "", "/"])
def test_paths_in_other_than_plain_form(path: str) -> None:
    with pytest.raises(ImageError):
        image.Place(path)


def test_a_folder_swapped_for_a_link_changes_nothing_outside(tmp_path: Path) -> None:
    """The descriptor that was checked is the one that is written through."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "file").write_text("outside")
    (inside / "file").write_text("inside")
    with image.Place(str(inside / "file")) as place:
        inside.rename(tmp_path / "moved")
        inside.symlink_to(outside)
        new = image.of_content(b"new", image.capture(str(tmp_path / "moved" / "file")))
        image._restore_file(new, place, ".temporary")
    assert (outside / "file").read_text() == "outside"
    assert (tmp_path / "moved" / "file").read_text() == "new"


def change(paths: list[Path], after: Image | None = None) -> Record:
    steps = [Step(str(path), image.capture(str(path)), after or Image()) for path in paths]
    return Record(tool="revert_dropin", summary="a change", steps=steps, target_path=str(paths[0]))


def carried_out(root: Path, wanted: Record) -> Record:
    """As a change goes where nothing interrupts it."""
    record = undo.prepare(str(root), wanted)
    undo.carry_out(record)
    undo.commit(str(root), record)
    return record


def test_a_change_is_taken_back_and_that_too(tmp_path: Path) -> None:
    root, path = tmp_path / "state", made(tmp_path / "file")
    root.mkdir()
    before = attributes(path)
    record = carried_out(root, change([path]))
    assert not path.exists()

    first = undo.find(str(root), record.id)
    back = carried_out(root, undo.reverse(first, {"uid": 7}))
    assert (path.read_bytes(), attributes(path)) == (b"content", before)

    again = carried_out(root, undo.reverse(undo.find(str(root), back.id)))
    assert not path.exists()
    listed = undo.listing(str(root))
    assert [one.id for one in listed] == [again.id, back.id, record.id]
    assert listed[1].undoes == record.id and listed[1].caller == {"uid": 7}


def test_what_came_in_between_is_kept_too(tmp_path: Path) -> None:
    root, path = tmp_path / "state", made(tmp_path / "file")
    root.mkdir()
    record = carried_out(root, change([path]))
    path.write_text("somebody's work since")
    back = carried_out(root, undo.reverse(record))
    assert path.read_bytes() == b"content"
    again = undo.reverse(back)
    undo.carry_out(undo.prepare(str(root), again))
    assert path.read_text() == "somebody's work since"


def test_what_came_in_between_is_not_touched_where_that_is_asked_for(tmp_path: Path) -> None:
    root, path = tmp_path / "state", made(tmp_path / "file")
    root.mkdir()
    record = carried_out(root, change([path]))
    kept = undo.find(str(root), record.id)
    path.write_text("somebody's work since")
    with pytest.raises(undo.UndoError, match="was changed since"):
        undo.reverse(kept, only_unchanged=True)
    assert path.read_text() == "somebody's work since"
    path.unlink()
    for _ in range(2):  # the second time it is taken back already, which is no fault
        carried_out(root, undo.reverse(kept, only_unchanged=True))
        assert path.read_bytes() == b"content"


@pytest.mark.parametrize("done", ["prepared", "half", "carried out"])
def test_a_change_that_is_cut_short_is_rolled_back(tmp_path: Path, done: str) -> None:
    root = tmp_path / "state"
    root.mkdir()
    one, two = made(tmp_path / "one", b"1" * 10), made(tmp_path / "two", b"2" * (1 << 17))
    before = attributes(one), attributes(two)
    record = undo.prepare(str(root), change([one, two]))
    if done == "half":
        one.unlink()
        (tmp_path / f".{record.id}-1.tmp").write_text("half a file")
    elif done == "carried out":
        undo.carry_out(record)
    outcomes = undo.recover(str(root))
    assert [(found.id, failure) for found, failure in outcomes] == [(record.id, "")]
    assert (attributes(one), attributes(two)) == before
    assert two.read_bytes() == b"2" * (1 << 17)
    assert os.listdir(root / "rollbacks") == []
    assert sorted(os.listdir(tmp_path)) == ["one", "state", "two"]
    assert undo.recover(str(root)) == []


def test_what_cannot_be_put_back_is_set_aside_for_people(tmp_path: Path) -> None:
    root, path = tmp_path / "state", tmp_path / "folder" / "file"
    root.mkdir()
    path.parent.mkdir()
    path.write_text("x")
    record = undo.prepare(str(root), change([path]))
    path.unlink()
    path.parent.rmdir()
    [(_, failure)] = undo.recover(str(root))
    assert "folder" in failure
    assert os.listdir(root / "rollbacks") == [f"{record.id}.failed"]
    assert undo.recover(str(root)) == []


def test_nothing_is_written_where_no_record_can_be(tmp_path: Path) -> None:
    path = made(tmp_path / "file")
    (tmp_path / "state").write_text("a file where the folder should be")
    with pytest.raises(OSError):
        undo.prepare(str(tmp_path / "state"), change([path]))
    assert path.exists()


def test_damaged_blobs_are_never_restored(tmp_path: Path) -> None:
    root, path = tmp_path / "state", made(tmp_path / "file", b"x" * (1 << 17))
    root.mkdir()
    record = carried_out(root, change([path]))
    blob = root / "rollbacks" / f"{record.id}.blobs" / "0"
    blob.write_bytes(b"y" * (1 << 17))
    with pytest.raises(Mismatch, match="damaged"):
        back = undo.prepare(str(root), undo.reverse(undo.find(str(root), record.id)))
        undo.carry_out(back)
    assert not path.exists()


@pytest.mark.parametrize("record_id", ["", "..", "rb-1", "rb-1-zzzzzzzz", "../audit", "rb-1-00000000"])
def test_no_such_record(tmp_path: Path, record_id: str) -> None:
    with pytest.raises(undo.NoSuchRecord):
        undo.find(str(tmp_path), record_id)


def test_retention(tmp_path: Path) -> None:
    root, path = tmp_path / "state", tmp_path / "file"
    root.mkdir()
    ids = []
    for number in range(6):
        path.write_bytes(bytes([number]) * 100_000)
        record = carried_out(root, change([path]))
        ids.append(record.id)
    now = record.timestamp_us

    def left() -> list[str]:
        return [one.id for one in undo.listing(str(root))][::-1]

    assert undo.retire(str(root), count=5, total_bytes=1 << 30, age_sec=1e6, now_us=now) == 1
    assert left() == ids[1:]
    assert undo.retire(str(root), count=5, total_bytes=350_000, age_sec=1e6, now_us=now) == 2
    assert left() == ids[3:]
    assert undo.retire(str(root), count=5, total_bytes=1, age_sec=0, now_us=now + 10) == 2
    assert left() == ids[5:], "the newest stays whatever it takes"
    assert sorted(os.listdir(root / "rollbacks")) == [f"{ids[5]}.blobs", f"{ids[5]}.done"]


def test_a_clock_that_went_back_makes_nothing_new_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, path = tmp_path / "state", tmp_path / "file"
    root.mkdir()
    present = time.time_ns()
    ids, stamps = [], []
    for years in (50, 50, 0, 0):
        monkeypatch.setattr(time, "time_ns", lambda ahead=years: present + ahead * 365 * 86400 * 10**9)
        path.write_bytes(b"x")
        record = carried_out(root, change([path]))
        ids.append(record.id)
        stamps.append(record.timestamp_us)
    assert stamps[2:] == [present // 1000] * 2, "its time is the clock's"
    assert [one.id for one in undo.listing(str(root))] == ids[::-1], "its place is behind those before it"
    assert [one.id for one in undo.listing(str(root), since_us=present // 1000 + 1)] == ids[1::-1]
    assert undo.retire(str(root), count=2, total_bytes=1 << 30, age_sec=1e6, now_us=present // 1000) == 2
    assert [one.id for one in undo.listing(str(root))] == ids[:1:-1]
    os.utime(root / "rollbacks" / f"{ids[2]}.done", (1, 1))
    assert undo.retire(str(root), count=2, total_bytes=1 << 30, age_sec=1e6, now_us=present // 1000) == 1


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    root = tmp_path / "state"
    root.mkdir()
    path = os.fsdecode(os.fsencode(tmp_path) + b"/50-\xff\n.conf")
    with open(path, "w") as file:
        file.write("kept")
    step = Step(path, image.capture(path), Image())
    record = Record(tool="revert_dropin", summary=f"Removed {path}", steps=[step], target_path=path)
    undo.prepare(str(root), record)
    undo.carry_out(record)
    undo.commit(str(root), record)
    [found] = undo.listing(str(root))
    assert found.steps[0].path == path
    assert found.target_path == f"{tmp_path}/50-\\udcff\n.conf"
    undo.put_back(found)
    with open(path) as file:
        assert file.read() == "kept"


@pytest.mark.parametrize("text", ["[" * 200_000, "{", "null", '{"version": 2}'])
def test_a_record_that_does_not_read_hides_no_other(tmp_path: Path, text: str) -> None:
    root, path = tmp_path / "state", made(tmp_path / "file")
    root.mkdir()
    record = undo.prepare(str(root), change([path]))
    undo.commit(str(root), record)
    (root / "rollbacks/rb-9999999999999999-00000000.done").write_text(text)
    assert [one.id for one in undo.listing(str(root))] == [record.id]
    with pytest.raises(undo.Damaged, match=r"rb-9999999999999999-00000000\.done"):
        undo.find(str(root), "rb-9999999999999999-00000000")


def test_a_tree_is_removed_and_put_back(tmp_path: Path) -> None:
    from syntrop.toold.changes import _plan_clear

    root, cache = tmp_path / "state", tmp_path / "cache"
    root.mkdir()
    (cache / "a" / "b").mkdir(parents=True)
    made(cache / "a" / "b" / "file")
    made(cache / "file")
    (cache / "a" / "link").symlink_to("b")
    (cache / "a").chmod(0o700)

    def shape() -> dict[str, object]:
        return {
            str(path.relative_to(cache)): attributes(path)[:3] if path.is_dir() else attributes(path)
            for path in sorted(cache.rglob("*"))
        }

    before = shape()
    record = undo.prepare(str(root), _plan_clear("x.service", [str(cache)], 1 << 20))
    undo.carry_out(record)
    assert list(cache.iterdir()) == []
    undo.commit(str(root), record)
    back = undo.prepare(str(root), undo.reverse(undo.find(str(root), record.id)))
    undo.carry_out(back)
    assert shape() == before
    # The taking back is cut short: everything is gone again, as it was when that began.
    assert undo.recover(str(root))[0][1] == ""
    assert list(cache.iterdir()) == []


FILES = st.dictionaries(st.sampled_from("abcd"), st.binary(max_size=40), max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(before=FILES, wanted=FILES, cut=st.integers(0, 4))
def test_any_change_cut_anywhere_between_steps(
    tmp_path: Path, before: dict[str, bytes], wanted: dict[str, bytes], cut: int
) -> None:
    """Some of the steps are made; then the next start puts all of it back."""
    import tempfile

    top = Path(tempfile.mkdtemp(dir=tmp_path))
    root, folder = top / "state", top / "folder"
    root.mkdir()
    folder.mkdir()
    for name, content in before.items():
        (folder / name).write_bytes(content)
    steps = []
    for name in sorted({*before, *wanted}):
        now = image.capture(str(folder / name))
        like = now if now.kind == FILE else image.capture(str(made(top / "like")))
        after = image.of_content(wanted[name], like) if name in wanted else Image()
        steps.append(Step(str(folder / name), now, after))
    record = undo.prepare(str(root), Record(tool="t", summary="s", steps=steps))
    for index, step in enumerate(record.steps[:cut]):
        assert step.after is not None
        image.restore(step.after, step.path, undo._temporary(record, index))
    assert [failure for _, failure in undo.recover(str(root))] == [""]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
