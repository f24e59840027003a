# SPDX-License-Identifier: Apache-2.0
"""Real folders to the model's trees, and back."""

from __future__ import annotations

import os
import shutil
import stat

from crashlab.model import ROOT, Node, Tree


def look(path: str) -> Node:
    """One file, folder (without its entries) or link. A path through /proc/PID/fd/ is the file itself."""
    follow = path.startswith("/proc/")
    status = os.stat(path, follow_symlinks=follow)
    kinds = {stat.S_IFDIR: "dir", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "other")
    node = Node(kind, stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))
    if kind == "link":
        node.target = os.readlink(path)
    if kind in ("dir", "file"):
        for name in os.listxattr(path, follow_symlinks=follow):
            node.xattrs[name] = os.getxattr(path, name, follow_symlinks=follow)
    if kind == "file":
        node.data = content(path)
    if kind in ("file", "link"):
        node.times = (status.st_atime_ns, status.st_mtime_ns)
    return node


def content(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)
    with open(handle, "rb") as file:
        return file.read()


def snapshot(root: str) -> tuple[Tree, dict[int, int]]:
    """The tree below a folder, and its nodes by inode number."""
    tree: Tree = {}
    numbers: dict[int, int] = {}

    def walk(path: str) -> int:
        inode = os.stat(path, follow_symlinks=False).st_ino
        known = numbers.get(inode)
        if known is not None:
            return known
        number = numbers[inode] = len(numbers)
        node = tree[number] = look(path)
        if node.kind == "dir":
            for name in sorted(os.listdir(path)):
                node.entries[name] = walk(os.path.join(path, name))
        return number

    assert walk(root) == ROOT
    return tree, numbers


def materialise(tree: Tree, root: str) -> None:
    """Make a tree real, in place of whatever is at `root`."""
    discard(root)
    made: dict[int, str] = {}

    def make(number: int, path: str) -> None:
        node = tree[number]
        if node.kind == "dir":
            os.mkdir(path, 0o700)
            for name, child in node.entries.items():
                make(child, os.path.join(path, name))
        elif number in made:
            os.link(made[number], path, follow_symlinks=False)
            return
        elif node.kind == "link":
            os.symlink(node.target, path)
        elif node.kind == "file":
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                if node.data:
                    os.write(handle, node.data)
            finally:
                os.close(handle)
        else:
            return
        made[number] = path
        if node.owner != (os.geteuid(), os.getegid()):
            os.chown(path, *node.owner, follow_symlinks=False)
        for name, value in node.xattrs.items():
            os.setxattr(path, name, value, follow_symlinks=False)
        if node.kind != "link":
            os.chmod(path, node.mode)
        if node.times is not None:
            os.utime(path, ns=node.times, follow_symlinks=False)

    make(ROOT, root)


def discard(root: str) -> None:
    if os.path.lexists(root):
        shutil.rmtree(root)
