# SPDX-License-Identifier: Apache-2.0
"""Objects, baseline and snapshots on a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common import redaction
from syntrop.contextd import snapshot
from syntrop.contextd.baseline import Baseline
from syntrop.contextd.objects import Objects
from syntrop.contextd.snapshot import Snapshot

KEY = b"k" * 32


def row(number: int, content: str | None = None) -> Snapshot:
    return Snapshot("text", f"{number:x}", content, 0o644, 0, 0, number, 1, 2, 3, {"user.a": "b"})


def test_contents_come_back_and_are_kept_once(tmp_path: Path) -> None:
    objects = Objects(str(tmp_path / "objects"))
    contents = [b"", b"a" * 1000, b"b\0", *(f"text {n}".encode() for n in range(200))]
    digests = objects.put(contents)
    size = objects.size()
    assert objects.put(contents) == digests
    assert objects.size() == size
    again = Objects(str(tmp_path / "objects"))
    assert [again.get(one) for one in digests] == contents
    assert again.get("00" * 32) is None


def test_damage_is_not_given_out(tmp_path: Path) -> None:
    objects = Objects(str(tmp_path))
    (digest,) = objects.put([b"precious" * 100])
    (pack,) = tmp_path.iterdir()
    data = bytearray(pack.read_bytes())
    data[60] ^= 1
    pack.write_bytes(data)
    assert Objects(str(tmp_path)).get(digest) is None


def test_only_what_is_named_is_kept(tmp_path: Path) -> None:
    objects = Objects(str(tmp_path))
    digests = objects.put(os.urandom(2000) for _ in range(100))
    kept = digests[::3]
    assert objects.keep_only({bytes.fromhex(one) for one in kept}) > 0
    for one in (objects, Objects(str(tmp_path))):
        assert all(one.get(digest) for digest in kept)
    assert objects.size() < 100 * 2000
    assert objects.put([b"new"]) and objects.get(objects.put([b"new"])[0]) == b"new"


def test_rows_come_back(tmp_path: Path) -> None:
    baseline = Baseline(str(tmp_path / "baseline"))
    names = [f"/etc/part{n % 7}/{os.fsdecode(bytes([200 + n % 50]))}{n}" for n in range(300)]
    baseline.put({name: row(n) for n, name in enumerate(names)})
    baseline.put({names[5]: None, names[6]: row(999)})
    again = Baseline(str(tmp_path / "baseline"))
    assert again.get(names[5]) is None
    assert again.get(names[6]).size == 999  # type: ignore[union-attr]
    assert again.get(names[7]).values() == row(7).values()  # type: ignore[union-attr]
    assert set(again.folders()) == {f"/etc/part{n}" for n in range(7)}
    assert len(again.folder("/etc/part6")) == 42


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["/a", "/etc/a", "/x/etc/a", "/etc/a/b", "/etc/ab"]), st.integers(0, 9)),
        max_size=30,
    ),
    st.integers(0, 40),
)
def test_one_row_is_found_without_the_others(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int]], torn: int
) -> None:
    """In whatever ledger, with names that are the ends of others, and a torn end."""
    folder = tmp_path_factory.mktemp("baseline")
    baseline = Baseline(str(folder))
    for path, number in changes:
        baseline.put({path: row(number) if number else None})
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[: -torn or None])
    whole = Baseline(str(folder))
    list(whole.folders())  # all ledgers are taken apart
    for path, _ in changes:
        found, known = (
            Baseline(str(folder)).get(path),
            whole.folder(os.path.dirname(path)).get(path.split("/")[-1]),
        )
        assert (found and found.values()) == (known and known.values())


def test_a_ledger_that_is_mostly_history_is_rewritten(tmp_path: Path) -> None:
    baseline = Baseline(str(tmp_path))
    for n in range(600):
        baseline.put({"/etc/one": row(n)})
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 300 * 200
    assert Baseline(str(tmp_path)).get("/etc/one").size == 599  # type: ignore[union-attr]
    baseline.clear()
    assert Baseline(str(tmp_path)).get("/etc/one") is None


def take(path: Path, name: str | None = None) -> tuple[Snapshot, bytes | None]:
    taken = snapshot.take(str(path), name or str(path), KEY)
    assert taken is not None
    return taken


def test_kinds_of_files(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("häuser\n")
    (tmp_path / "latin").write_bytes(b"h\xe4user\n")
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "large").write_bytes(b"x" * (snapshot.KEPT_MAX + 1))
    (tmp_path / "link").symlink_to("text")
    os.mkfifo(tmp_path / "fifo")
    assert take(tmp_path / "text")[1] == "häuser\n".encode()
    assert take(tmp_path / "latin")[1] == "häuser\n".encode()
    assert [take(tmp_path / name)[0].kind for name in ("binary", "large", "link", "fifo")] == [
        "binary", "huge", "link", "other",
    ]  # fmt: skip
    assert take(tmp_path / "link")[1] == b"text"
    assert take(tmp_path)[0].kind == "folder"
    assert snapshot.take(str(tmp_path / "none"), "/none", KEY) is None
    assert snapshot.take(str(tmp_path / "text" / "below"), "/none", KEY) is None


def test_what_counts_as_a_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a")
    first = take(path)[0]
    assert first.untouched(os.lstat(path))
    os.utime(path, (1, 1))
    assert not first.untouched(os.lstat(path))
    assert take(path)[0].state() == first.state()
    path.chmod(0o600)
    second = take(path)[0]
    assert second.state() != first.state()
    path.write_text("b")
    assert take(path)[0].state() != second.state()
    os.setxattr(path, "user.test", b"1")
    assert take(path)[0].xattrs == {"user.test": "1"}


@pytest.mark.parametrize(
    "path",
    ["/etc/shadow", "/etc/gshadow", "/etc/ssh/ssh_host_rsa_key", "/etc/ssl/private/a.pem", "/root/.netrc",
     "/etc/credstore/x", "/etc/krb5.keytab", "/etc/NetworkManager/system-connections/home.nmconnection"],
)  # fmt: skip
def test_secret_by_name(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("content")
    one, text = take(tmp_path / "file", path)
    assert (one.kind, text) == ("secret", None)
    assert len(one.digest) == 40 and not one.world_readable


def test_public_keys_are_no_secrets(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("ssh-ed25519 AAAA")
    assert take(tmp_path / "file", "/etc/ssh/ssh_host_rsa_key.pub")[0].kind == "text"


def test_the_key_is_made_once_and_is_nobody_elses(tmp_path: Path) -> None:
    path = str(tmp_path / "key")
    key, fresh = redaction.load_key(path)
    assert fresh and len(key) == 32
    assert redaction.load_key(path) == (key, False)
    assert os.stat(path).st_mode & 0o777 == 0o600
    Path(path).write_bytes(b"short")
    assert redaction.load_key(path)[1]
