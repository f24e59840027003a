# SPDX-License-Identifier: Apache-2.0
"""What changed between two states of a file, as a unified diff and in words."""

from __future__ import annotations

from syntrop.contextd.snapshot import BINARY, FOLDER, HUGE, LINK, OTHER, SECRET, TEXT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from syntrop.contextd.snapshot import Snapshot

CONTEXT = 3  # lines around a change
_MATCHED_MAX = 3000  # lines compared in earnest
_PAIRS_MAX = 20_000  # pairs of equal lines among them, each of which may be looked at again for every match
_WORDS = {
    BINARY: "binary content",
    HUGE: "large content",
    SECRET: "secret content",
    OTHER: "special file",
    FOLDER: "folder",
}


def unified(old: str, new: str, path: str, *, created: bool = False, removed: bool = False) -> str:
    """A unified diff of two texts, as diff -u writes it."""
    from difflib import SequenceMatcher

    before, after = _lines(old), _lines(new)
    head = 0
    most = min(len(before), len(after))
    while head < most and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < most - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    middle_old, middle_new = before[head : len(before) - tail], after[head : len(after) - tail]
    if len(middle_old) + len(middle_new) > _MATCHED_MAX:
        codes = [("replace", 0, len(middle_old), 0, len(middle_new))]
    else:
        matcher = SequenceMatcher(_common(middle_old, middle_new), middle_old, middle_new, autojunk=False)
        codes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    changes = [(i1 + head, i2 + head, j1 + head, j2 + head) for _, i1, i2, j1, j2 in codes if i1 < i2 or j1 < j2]
    if not changes:
        return ""
    out = [f"--- {'/dev/null' if created else 'a' + path}\n", f"+++ {'/dev/null' if removed else 'b' + path}\n"]
    for group in _groups(changes):
        out += _hunk(group, before, after)
    return "".join(out)


def _common(old: list[str], new: list[str]) -> Callable[[str], bool] | None:
    """Which lines are too common to begin a match with, such as empty ones: None where none is.

    Without this two texts of the same few lines take the cube of their length.
    """
    from collections import Counter

    before, after = Counter(old), Counter(new)
    pairs = {line: count * after[line] for line, count in before.items() if line in after}
    total = sum(pairs.values())
    common: set[str] = set()
    for line in sorted(pairs, key=pairs.__getitem__, reverse=True):
        if total <= _PAIRS_MAX:
            break
        total -= pairs[line]
        common.add(line)
    return common.__contains__ if common else None


def _lines(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends one, and a last one without it says so as diff(1) does."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()
    if last != "\n":
        lines.append(last + "\\ No newline at end of file\n")
    return lines


def _groups(changes: list[tuple[int, int, int, int]]) -> list[list[tuple[int, int, int, int]]]:
    groups: list[list[tuple[int, int, int, int]]] = []
    for change in changes:
        if groups and change[0] - groups[-1][-1][1] <= 2 * CONTEXT:
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups


def _hunk(group: list[tuple[int, int, int, int]], before: list[str], after: list[str]) -> list[str]:
    first, last = group[0], group[-1]
    lead = min(CONTEXT, first[0])
    trail = min(CONTEXT, len(before) - last[1])
    old_from, old_to = first[0] - lead, last[1] + trail
    new_from, new_to = first[2] - lead, last[3] + trail
    out = [f"@@ -{_range(old_from, old_to)} +{_range(new_from, new_to)} @@\n"]
    at = old_from
    for old_start, old_end, new_start, new_end in group:
        out += (" " + line for line in before[at:old_start])
        out += ("-" + line for line in before[old_start:old_end])
        out += ("+" + line for line in after[new_start:new_end])
        at = old_end
    out += (" " + line for line in before[at:old_to])
    return out


def _range(start: int, end: int) -> str:
    count = end - start
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"


def describe(path: str, old: Snapshot | None, new: Snapshot | None) -> str:
    """The change in a few words. One of the two is there."""
    if old is None:
        assert new is not None
        return f"{path} was created ({_what(new)})"
    if new is None:
        return f"{path} was removed ({_what(old)})"
    words = []
    if old.kind != new.kind:
        words.append(f"became {_what(new)}, was {_what(old)}")
    elif old.digest != new.digest:
        words.append("points elsewhere" if new.kind == LINK else "changed")
    words += attributes(old, new)
    return f"{path} {', '.join(words) if words else 'was replaced by the same'}"


def attributes(old: Snapshot, new: Snapshot) -> list[str]:
    """Differences beside the content."""
    words = []
    if old.mode != new.mode:
        words.append(f"mode {old.mode:04o} became {new.mode:04o}")
    if (old.uid, old.gid) != (new.uid, new.gid):
        words.append(f"owner {old.uid}:{old.gid} became {new.uid}:{new.gid}")
    for name in sorted(old.xattrs.keys() | new.xattrs.keys()):
        before, after = old.xattrs.get(name, "absent"), new.xattrs.get(name, "absent")
        if before != after:
            words.append(f"attribute {name}: {before} became {after}")
    return words


def full(
    path: str, old: Snapshot | None, new: Snapshot | None, old_text: bytes | None, new_text: bytes | None
) -> str:
    """The change in full: a unified diff where both sides are kept, digests where one is not."""
    lines = [] if old is None or new is None else attributes(old, new)
    both = (old is None or old_text is not None) and (new is None or new_text is not None)
    if both and all(one is None or one.kind in (TEXT, LINK) for one in (old, new)):
        before, after = _text(old_text), _text(new_text)
        if old is not None and new is not None and old.kind == new.kind == TEXT and old.digest != new.digest:
            diff = unified(before, after, path)
            lines.append(diff or "The content changed in a way that the kept text does not show.")
        elif old is None or new is None or old.digest != new.digest or old.kind != new.kind:
            lines.append(unified(before, after, path, created=old is None, removed=new is None))
    elif old is None or new is None or (old.kind, old.digest) != (new.kind, new.digest):
        lines.append(f"before: {_side(old)}")
        lines.append(f"after: {_side(new)}")
    return "\n".join(lines)


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode("utf-8", "replace")


def _side(one: Snapshot | None) -> str:
    if one is None:
        return "absent"
    if one.kind in (FOLDER, OTHER):
        return _what(one)
    return f"{_what(one)}, {one.size} bytes, keyed digest {one.digest[:16]}"


def _what(one: Snapshot) -> str:
    if one.kind == LINK:
        return "symbolic link"
    return _WORDS.get(one.kind, f"{one.size} bytes")
