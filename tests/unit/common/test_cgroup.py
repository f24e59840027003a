# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from syntrop.common import cgroup


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A unified hierarchy as plain files."""
    top = tmp_path / "fs" / "cgroup"
    service = top / "system.slice" / "nginx.service"
    service.mkdir(parents=True)
    (top / "cgroup.controllers").write_text("cpu io memory pids\n")
    monkeypatch.setenv("SYNTROP_SYS_ROOT", str(tmp_path))
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path / "proc"))
    return top


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


def test_readers(tree: Path) -> None:
    group = cgroup.Group("/system.slice/nginx.service")
    put(
        Path(group.folder),
        memory_current="4096\n",
        memory_max="max\n",
        memory_high="8192\n",
        memory_stat="anon 100\nfile 200\ninactive_file 96\n",
        memory_events="low 0\noom_kill 2\n",
        cpu_stat="usage_usec 7\nuser_usec 4\n",
        cpu_max="50000 100000\n",
        io_stat="8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n9:0\n",
        pids_current="3\n",
        pids_max="max\n",
        cgroup_events="populated 1\nfrozen 0\n",
        cgroup_procs="12\n0\n",
        cgroup_controllers="memory pids\n",
    )
    assert (group.memory_current(), group.memory_max(), group.memory_high()) == (4096, None, 8192)
    assert group.memory_in_use() == 4000
    assert group.memory_stat() == {"anon": 100, "file": 200, "inactive_file": 96}
    assert group.memory_events()["oom_kill"] == 2
    assert group.cpu_stat() == {"usage_usec": 7, "user_usec": 4}
    assert group.cpu_max() == (50000, 100000)
    assert group.io_stat()["8:0"]["wios"] == 4
    assert group.io_stat()["9:0"] == {}
    assert (group.pids_current(), group.pids_max()) == (3, None)
    assert group.is_populated() and not group.is_frozen()
    assert group.pids() == [12, 0]
    assert group.controllers() == ["memory", "pids"]
    put(Path(group.folder), cpu_max="max 100000\n")
    assert group.cpu_max() == (None, 100000)


def test_what_the_kernel_would_not_write_is_refused(tree: Path) -> None:
    group = cgroup.Group("/system.slice/nginx.service")
    put(
        Path(group.folder),
        memory_current="many\n",
        memory_max="\n",
        cpu_stat="usage_usec\n",
        cpu_max="1\n",
        io_stat="8:0 rbytes=x\n",
        cgroup_events="frozen yes\n",
        cgroup_procs="1 x\n",
    )
    for read in (
        group.memory_current,
        group.memory_max,
        group.cpu_stat,
        group.cpu_max,
        group.io_stat,
        group.events,
        group.pids,
    ):
        with pytest.raises(cgroup.Malformed):
            read()


def test_a_missing_file_and_a_missing_group_differ(tree: Path) -> None:
    with pytest.raises(cgroup.ControllerUnavailable, match=r"memory\.current"):
        cgroup.Group("/system.slice/nginx.service").memory_current()
    with pytest.raises(cgroup.NoSuchGroup):
        cgroup.Group("/system.slice/gone.service").memory_current()


@pytest.mark.parametrize("path", ["", "relative", "/a/../b", "/.."])
def test_paths_that_leave_the_tree_are_refused(path: str, tree: Path) -> None:
    with pytest.raises(ValueError, match="no path"):
        cgroup.Group(path)


def test_the_old_hierarchy_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTROP_SYS_ROOT", str(Path(__file__).parents[2] / "data" / "trees" / "cgroup-v1"))
    for act in (cgroup.root, lambda: cgroup.Group("/"), lambda: cgroup.of_unit("a.service")):
        with pytest.raises(cgroup.NotUnified, match="unified"):
            act()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/system.slice/nginx.service\n", "/system.slice/nginx.service"),
        ("9:name=systemd:/\n4:memory:/x\n0::/\n", "/"),
        ("0::/a:b\n", "/a:b"),
    ],
)
def test_membership(text: str, path: str) -> None:
    assert cgroup.parse_membership(text) == path


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("4:memory:/x\n", cgroup.NotUnified),
        ("", cgroup.NotUnified),
        ("0::/../../outside\n", cgroup.NoSuchGroup),
        ("0::/..\n", cgroup.NoSuchGroup),
        ("0::/x.service (deleted)\n", cgroup.NoSuchGroup),
        ("0::x\n", cgroup.Malformed),
    ],
)
def test_membership_that_is_of_no_use(text: str, error: type[cgroup.CgroupError]) -> None:
    with pytest.raises(error):
        cgroup.parse_membership(text)


def test_of_pid(tree: Path, tmp_path: Path) -> None:
    for name in ("7", "self"):
        (tmp_path / "proc" / name).mkdir(parents=True)
        (tmp_path / "proc" / name / "cgroup").write_text("0::/system.slice/nginx.service\n")
    assert cgroup.of_pid(7) == cgroup.of_pid(0) == cgroup.Group("/system.slice/nginx.service")
    assert cgroup.of_pid(7).unit() == "nginx.service"
    with pytest.raises(cgroup.NoSuchGroup, match="no process 8"):
        cgroup.of_pid(8)


def test_units_are_found_where_their_slices_put_them(tree: Path) -> None:
    for path in (
        "syntrop.slice/modeld.service",
        "a.slice/a-b.slice/a-b-c.slice/deep.service",
        "user.slice/user-7.slice/user@7.service/app.slice/private.service",
        "system.slice/_cpu.service",
    ):
        (tree / path).mkdir(parents=True)
    assert cgroup.of_unit("nginx.service").path == "/system.slice/nginx.service"
    assert cgroup.of_unit("modeld.service").path == "/syntrop.slice/modeld.service"
    assert cgroup.of_unit("deep.service").path == "/a.slice/a-b.slice/a-b-c.slice/deep.service"
    assert cgroup.of_unit("a-b.slice").path == "/a.slice/a-b.slice"
    assert cgroup.of_unit("-.slice").path == "/"
    assert cgroup.of_unit("user@7.service").path == "/user.slice/user-7.slice/user@7.service"
    assert cgroup.of_unit("cpu.service").path == "/system.slice/_cpu.service"
    assert cgroup.of_unit("cpu.service").unit() == "cpu.service"


@pytest.mark.parametrize(
    "unit",
    [
        "gone.service",
        "private.service",
        "a--b.slice",
        "nginx",
        "../nginx.service",
        "x/y.service",
        ".service",
        "a\n.service",
        "",
    ],
)
def test_units_that_have_no_group(unit: str, tree: Path) -> None:
    (tree / "user.slice/user-7.slice/user@7.service/app.slice/private.service").mkdir(parents=True)
    with pytest.raises(cgroup.NoSuchGroup):
        cgroup.of_unit(unit)


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/nginx.service", "nginx.service"),
        ("/system.slice/nginx.service/worker", "nginx.service"),
        ("/a.slice/a-b.slice/c.scope", "c.scope"),
        ("/user.slice/user-7.slice/user@7.service/app.slice/x.service", "user@7.service"),
        ("/system.slice", None),
        ("/", None),
        ("/init.scope", "init.scope"),
        ("/docker/0123", None),
    ],
)
def test_the_unit_of_a_path(path: str, unit: str | None) -> None:
    assert cgroup.unit_of(path) == unit


@given(st.lists(st.from_regex(r"[a-z0-9]{1,4}", fullmatch=True), min_size=1, max_size=5))
@example(["io"])  # which would be a file of the controller's, and is escaped
def test_slices_nest_by_their_names(parts: list[str]) -> None:
    path = cgroup.slice_path("-".join(parts) + ".slice")
    assert path.count("/") == len(parts)
    assert path.rpartition("/")[2].removeprefix("_") == "-".join(parts) + ".slice"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "cgroup.procs", "memory.x", "-a b", "_x"])
def test_names_that_are_no_children(name: str, tree: Path) -> None:
    with pytest.raises(ValueError, match="no name"):
        cgroup.Group("/system.slice").child(name)


def test_a_group_that_is_not_ours_is_not_permitted(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = cgroup.Group("/system.slice/nginx.service")

    def refuse(*_args: object, **_kwargs: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(cgroup.NotPermitted):
        group.add(1)


@pytest.mark.root
def test_the_real_kernel(tmp_path: Path) -> None:
    """Freeze, thaw, kill and removal on a hierarchy mounted in a namespace of its own."""
    script = Path(__file__).with_name("inside_cgroups.py")
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, str(script), str(tmp_path / "sys")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("ok\n")
