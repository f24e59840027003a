# SPDX-License-Identifier: Apache-2.0
"""Every way out of the sandbox that we know of is held, and by the layer that is there for it.

`escape.c` tries one way at a time. Each test runs it in the whole sandbox, where it has to be held, and then with
the layers that hold it taken away, where it has to get out: a layer that does nothing turns its test red.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syntrop.toold import confinement, runner
from syntrop.toold.confinement import ALL_LAYERS, CAPS, FDS, LANDLOCK, LIMITS, NNP, SECCOMP
from syntrop.toold.view import ALWAYS, AUTO, NEVER, Views

OUT, HELD = 0, 7


@pytest.fixture(scope="session")
def escape() -> Iterator[str]:
    """The compiled program, where the sandbox's own /tmp does not hide it."""
    folder = tempfile.mkdtemp(prefix="toold-escape-", dir="/var/tmp")
    program = os.path.join(folder, "escape")
    try:
        subprocess.run(["cc", "-O1", "-w", "-o", program, str(Path(__file__).with_name("escape.c"))], check=True)
        yield program
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that the sandbox's own /tmp does not hide."""
    folder = Path(f"/var/tmp/toold-test-{os.getpid()}")
    folder.mkdir()
    yield folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def attempt(
    escape: str,
    *arguments: str,
    layers: int = ALL_LAYERS,
    namespaces: str = ALWAYS,
    scratch: bool = False,
    timeout: float = 30.0,
    views: Views | None = None,
) -> runner.Outcome:
    command = runner.Command([escape, *arguments], timeout=timeout, scratch=scratch, reads=("/proc/self",))
    return runner.run(command, layers=layers, namespaces=namespaces, views=views)


def started(argv: list[str], **more: Any) -> int:
    """The exit code of a program that is started without the runner."""
    with open("/dev/null", "wb") as null:
        pid, _ = confinement.start(
            argv,
            **{"environment": {}, "rules": (), "limits": confinement.Limits(cpu=30), **more},
            out=null.fileno(),
            err=null.fileno(),
        )
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def held_by(escape: str, missing: int, *arguments: str, scratch: bool = False) -> None:
    """Held with every layer, with and without namespaces and a view; out without these layers."""
    for namespaces in (ALWAYS,) if scratch else (ALWAYS, NEVER):
        for views in (None, Views(NEVER if scratch else ALWAYS)):
            whole = attempt(escape, *arguments, scratch=scratch, namespaces=namespaces, views=views)
            assert whole.exit_code == HELD, whole.stderr
            if views is not None:
                assert whole.viewed != scratch
                views.close()
    kept = ALWAYS if scratch else NEVER
    less = attempt(escape, *arguments, scratch=scratch, namespaces=kept, layers=ALL_LAYERS & ~missing)
    assert less.exit_code == OUT, less.stderr


def test_a_program_runs_at_all(escape: str) -> None:
    outcome = attempt(escape, "nothing")
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, b"", b"")


def test_writing_outside(escape: str, outside: Path) -> None:
    (outside / "file").write_text("kept")
    whole = attempt(escape, "write", str(outside / "file"))
    assert whole.exit_code == HELD
    assert (outside / "file").read_text() == "kept"
    # With a folder of its own, since no file may have a byte otherwise (see test_the_size_of_files).
    held_by(escape, LANDLOCK, "write", str(outside / "new"), scratch=True)


def test_truncating_what_may_be_read(escape: str, outside: Path) -> None:
    target = outside / "file"
    target.write_text("kept")
    command = runner.Command([escape, "truncate", str(target)], timeout=30, reads=(str(target),))
    assert runner.run(command).exit_code == HELD
    # The filter alone holds it too, which is what kernels with Landlock 2 need.
    assert runner.run(command, layers=ALL_LAYERS & ~LANDLOCK).exit_code == HELD
    assert target.read_text() == "kept"
    assert runner.run(command, layers=ALL_LAYERS & ~LANDLOCK & ~SECCOMP).exit_code == OUT


def test_truncating_by_path(escape: str, outside: Path) -> None:
    (outside / "file").write_text("kept")
    held_by(escape, LANDLOCK | SECCOMP, "truncate-path", str(outside / "file"))


def test_reading_secrets(escape: str, outside: Path) -> None:
    secret = outside / "secret"
    secret.write_text("secret")
    held_by(escape, LANDLOCK, "read", str(secret))
    held_by(escape, LANDLOCK, "relax", str(secret))
    assert attempt(escape, "read", "/etc/shadow").exit_code == HELD


def test_reading_what_a_tool_declares(escape: str, outside: Path) -> None:
    (outside / "open").write_text("open")
    command = runner.Command([escape, "read", str(outside / "open")], timeout=30, reads=(str(outside),))
    assert runner.run(command).exit_code == OUT


def test_a_link_to_outside(escape: str, outside: Path) -> None:
    held_by(escape, LANDLOCK, "symlink", str(outside / "new"), scratch=True)


def test_a_link_that_comes_and_goes(escape: str, outside: Path) -> None:
    held_by(escape, LANDLOCK, "swap", str(outside / "new"), scratch=True)


def test_moving_a_file_outside(escape: str, outside: Path) -> None:
    """On one and the same mount: from the folder that it may change to the one above."""
    assert attempt(escape, "rename", str(outside / "moved"), scratch=True).exit_code == HELD
    assert not (outside / "moved").exists()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for layers, expected in ((ALL_LAYERS, HELD), (ALL_LAYERS & ~LANDLOCK, OUT)):
            code = started(
                [escape, "rename", str(outside / "moved"), f"{folder}/own"],
                rules=[confinement.Rule(folder, confinement.CHANGE, optional=False)],
                files=True,
                layers=layers,
            )
            assert (code, (outside / "moved").exists()) == (expected, expected == OUT)


def test_forking(escape: str) -> None:
    held_by(escape, SECCOMP, "fork")


@pytest.mark.parametrize("way", ["ptrace", "kill", "mem", "environ"])
def test_other_processes(escape: str, way: str) -> None:
    # Three layers hold each of these on their own: the filter or Landlock, and having fewer capabilities.
    with subprocess.Popen(["sleep", "60"]) as victim:
        try:
            held_by(escape, SECCOMP | LANDLOCK | CAPS, way, str(victim.pid))
            assert attempt(escape, way, str(victim.pid), layers=ALL_LAYERS & ~SECCOMP).exit_code == HELD
        finally:
            victim.kill()


def test_the_root_of_another_process(escape: str, outside: Path) -> None:
    (outside / "secret").write_text("secret")
    path = str(outside / "secret")
    held_by(escape, LANDLOCK, "root", "self", path)
    held_by(escape, LANDLOCK | CAPS, "root", str(os.getpid()), path)


def test_unix_sockets(escape: str, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(outside / "socket"))
        listener.listen()
        held_by(escape, SECCOMP, "unix", str(outside / "socket"))


def test_abstract_sockets(escape: str) -> None:
    name = f"toold-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        held_by(escape, SECCOMP | LANDLOCK, "abstract", name)  # Landlock since version 6


@pytest.mark.parametrize("way", ["inet", "memfd-exec", "writable-code", "raise-limits", "handle"])
def test_system_calls(escape: str, way: str) -> None:
    whole = attempt(escape, way)
    assert whole.exit_code == HELD, whole.stderr
    less = ALL_LAYERS & ~SECCOMP & ~LIMITS if way == "raise-limits" else ALL_LAYERS & ~SECCOMP
    if way == "raise-limits":
        less &= ~CAPS  # to raise a limit takes a capability, if there is one to raise
    assert attempt(escape, way, layers=less).exit_code == OUT


@pytest.mark.root
def test_packet_sockets(escape: str) -> None:
    held_by(escape, SECCOMP | CAPS, "packet")


def test_terminals(escape: str) -> None:
    keyboard, terminal = os.openpty()
    try:
        held_by(escape, LANDLOCK, "write", os.ttyname(terminal))
    finally:
        os.close(keyboard)
        os.close(terminal)
    held_by(escape, SECCOMP, "ioctl")


@pytest.mark.root
def test_namespaces(escape: str) -> None:
    for views in (None, Views(ALWAYS)):
        assert attempt(escape, "unshare", views=views).exit_code == HELD
    assert attempt(escape, "unshare", namespaces=NEVER).exit_code == HELD
    assert attempt(escape, "unshare", namespaces=NEVER, layers=ALL_LAYERS & ~SECCOMP & ~CAPS).exit_code == OUT


def test_a_command_has_every_namespace_for_itself(views: Views) -> None:
    kinds = list(confinement.NAMESPACES)
    command = runner.Command(["readlink", *(f"/proc/self/ns/{kind}" for kind in kinds)], timeout=30)
    ours = [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds]

    def told(namespaces: str, views: Views | None = None) -> list[str]:
        outcome = runner.run(command, namespaces=namespaces, views=views)
        assert list(outcome.namespaces) == ([] if namespaces == NEVER else kinds)
        return outcome.stdout.decode().split()

    assert told(NEVER) == ours
    own = told(ALWAYS)
    assert len(own) == len(kinds) and not set(own) & set(ours)
    command = runner.Command(command.argv, timeout=30, reads=("/proc/self",))  # a view has nothing undeclared
    viewed = told(ALWAYS, views)
    assert len(viewed) == len(kinds) and not set(viewed) & set(ours)


def test_a_command_is_the_second_process_of_its_namespace() -> None:
    """Whoever is the first is treated, and behaves, in another way."""
    command = runner.Command(["grep", "^NSpid:", "/proc/self/status"], timeout=30, reads=("/proc/self",))
    assert runner.run(command).stdout.split()[-1] == b"2"
    assert runner.run(command, namespaces=NEVER).stdout.split()[-1] != b"2"


WITHOUT_NETWORKS = """
import sys
from syntrop.toold import runner
from syntrop.toold.confinement import SandboxError
open("/proc/sys/user/max_net_namespaces", "w").write("0")
command = runner.Command(["true"], timeout=30)
for namespaces in ("always", "auto", "never"):
    try:
        print(*runner.run(command, namespaces=namespaces).namespaces)
    except SandboxError as error:
        print(error)
"""


def test_a_namespace_that_cannot_be_had_stops_everything_or_is_done_without() -> None:
    """In a user namespace whose owner allows none of the network, as a unit or a kernel may."""
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", WITHOUT_NETWORKS],
        capture_output=True,
        text=True,
        check=True,
    )
    refused, auto, never = done.stdout.splitlines()
    assert "no net namespace of its own" in refused and "auto" in refused
    assert auto == "user mnt pid ipc uts"
    assert never == ""


@pytest.mark.root
def test_mounts(escape: str) -> None:
    """In a mount namespace of its own, where nobody would see it. Three layers hold it, each on its own."""
    assert attempt(escape, "mount").exit_code == HELD
    views = Views(ALWAYS)  # in which root is still root
    for missing in (0, SECCOMP | LANDLOCK, SECCOMP | CAPS, LANDLOCK | CAPS):
        assert attempt(escape, "mount", layers=ALL_LAYERS & ~missing, views=views).exit_code == HELD
    less = ALL_LAYERS & ~(SECCOMP | LANDLOCK | CAPS)
    assert attempt(escape, "mount", layers=less, views=views).exit_code == OUT
    views.close()


# --- the view that bubblewrap makes --------------------------------------------------------------------------


@pytest.fixture
def views() -> Iterator[Views]:
    made = Views(ALWAYS)
    yield made
    made.close()


def test_a_view_holds_where_landlock_does_not(escape: str, outside: Path, views: Views) -> None:
    (outside / "secret").write_text("secret")
    path = str(outside / "secret")
    less = ALL_LAYERS & ~LANDLOCK
    assert attempt(escape, "read", path, layers=less, views=views).exit_code == HELD
    assert attempt(escape, "read", path, layers=less).exit_code == OUT
    # Landlock does not hide what there is, with all of its rights taken.
    assert attempt(escape, "exists", path, views=views).exit_code == HELD
    assert attempt(escape, "exists", path).exit_code == OUT


def test_a_view_has_no_network(escape: str, views: Views) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        less = ALL_LAYERS & ~LANDLOCK & ~SECCOMP
        assert attempt(escape, "loopback", port, layers=less, views=views, namespaces=NEVER).exit_code == HELD
        assert attempt(escape, "loopback", port, layers=less).exit_code == HELD
        assert attempt(escape, "loopback", port, layers=less, namespaces=NEVER).exit_code == OUT
        assert attempt(escape, "loopback", port).exit_code == HELD


def test_a_view_is_made_once_and_anew_when_a_file_was_replaced(outside: Path, views: Views) -> None:
    path = outside / "file"
    command = runner.Command(["cat", str(path)], timeout=30, reads=(str(path),))

    def shown() -> bytes:
        outcome = runner.run(command, views=views)
        assert outcome.viewed, outcome.stderr
        return outcome.stdout

    path.write_text("old")
    assert shown() == b"old"
    made = list(views._made.values())
    path.write_text("changed in place")
    assert shown() == b"changed in place"
    assert list(views._made.values()) == made
    (outside / "new").write_text("new")
    (outside / "new").rename(path)
    assert shown() == b"new"
    assert len(views._made) == 1


def test_what_shows_the_mounts_has_no_view(views: Views) -> None:
    command = runner.Command(["df", "/"], timeout=30, reads=("/proc/self",), mounts=True)
    outcome = runner.run(command, views=views)
    assert (outcome.exit_code, outcome.viewed) == (0, False)


def test_bubblewrap_is_never_required(escape: str) -> None:
    """In a thread that Landlock keeps from mounting, as a unit's restrictions would, it really does not work."""
    import threading

    told: list[object] = []

    def work() -> None:
        confinement.confine_thread([confinement.Rule("/", confinement.CHANGE | confinement.EXECUTE)])
        for mode in (AUTO, NEVER, ALWAYS):
            views = Views(mode)
            try:
                outcome = attempt(escape, "nothing", views=views)
                told.append((outcome.exit_code, outcome.viewed))
            except confinement.SandboxError as error:
                told.append(str(error))
            views.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert told[:2] == [(0, False), (0, False)]
    assert "bubblewrap" in str(told[2])


def test_where_it_is_not_installed(escape: str, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_FOLDERS", (str(outside),))
    assert attempt(escape, "nothing", views=Views(AUTO)).exit_code == 0
    with pytest.raises(confinement.SandboxError, match="not installed"):
        attempt(escape, "nothing", views=Views(ALWAYS))


# --- and the other layers again ------------------------------------------------------------------------------


def test_descriptors(escape: str, outside: Path) -> None:
    (outside / "secret").write_text("secret")
    handle = os.open(outside / "secret", os.O_RDONLY)
    os.set_inheritable(handle, True)
    try:
        held_by(escape, FDS, "fd")
    finally:
        os.close(handle)


def test_the_environment(escape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "secret")
    assert attempt(escape, "environment").exit_code == HELD
    assert subprocess.run([escape, "environment"], capture_output=True, check=False).returncode == OUT


def test_there_is_no_shell(escape: str) -> None:
    held_by(escape, LANDLOCK, "exec")


@pytest.mark.root
def test_capabilities(escape: str) -> None:
    held_by(escape, CAPS, "capabilities")


def test_no_new_privileges(escape: str) -> None:
    # Landlock and the filter cannot be had without it (that is tested below), so all three are left out.
    held_by(escape, NNP | LANDLOCK | SECCOMP, "privileges")


def test_address_space(escape: str) -> None:
    held_by(escape, LIMITS, "memory")


def test_the_size_of_files(escape: str) -> None:
    held_by(escape, LIMITS, "large-file", scratch=True)


def test_time(escape: str) -> None:
    outcome = attempt(escape, "sleep", timeout=0.2)
    assert outcome.timed_out
    assert outcome.exit_code == 128 + 9


def test_processor_time(escape: str) -> None:
    """A second of it, however long that takes; without the limit it goes on."""
    for layers, expected in ((ALL_LAYERS, -9), (ALL_LAYERS & ~LIMITS, None)):
        with open("/dev/null", "wb") as null:
            pid, _ = confinement.start(
                [escape, "spin"],
                environment={},
                rules=(),
                limits=confinement.Limits(cpu=1),
                out=null.fileno(),
                err=null.fileno(),
                layers=layers,
                namespaces=NEVER,  # it is its own process then, and not the one that waits for it
            )
        ended = None
        while ended is None and _processor_seconds(pid) < 2.5:
            time.sleep(0.02)
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert ended == expected
        if ended is None:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_output(escape: str) -> None:
    outcome = attempt(escape, "shout")
    assert outcome.truncated
    assert len(outcome.stdout) == runner.OUTPUT_MAX


def test_nothing_outlives_a_command(escape: str) -> None:
    """It closes its streams, leaves a grandchild, and tries to take it into a session of its own."""
    command = runner.Command([escape, "orphan"], timeout=30, processes=True)
    outcome = runner.run(command)
    assert outcome.stdout == b"started\n"
    assert _eventually_none(escape)
    # With the filter off, setsid(2) works, and its namespace of processes is what it cannot leave.
    runner.run(command, layers=ALL_LAYERS & ~SECCOMP)
    assert _eventually_none(escape)
    # Without that too, a control group is what is left to find it by.
    runner.run(command, layers=ALL_LAYERS & ~SECCOMP, namespaces=NEVER)
    left = _running(escape)
    assert left
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def _running(escape: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path("/proc", name, "cmdline").read_bytes().split(b"\0")[0] == escape.encode():
                found.append(int(name))
        except OSError:
            continue
    return found


def _eventually_none(escape: str) -> bool:
    deadline = time.monotonic() + 30
    while _running(escape):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_it_dies_with_the_thread_that_made_it(escape: str) -> None:
    import threading

    pids = []
    read, write = os.pipe()

    def start() -> None:
        pid, _ = confinement.start(
            [escape, "sleep"],
            environment={},
            rules=(),
            limits=confinement.Limits(cpu=10),
            out=write,
            err=write,
        )
        pids.append(pid)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == -9
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("missing", [NNP])
def test_a_layer_that_cannot_be_had_stops_everything(escape: str, missing: int) -> None:
    """Without no-new-privileges and without capabilities the kernel refuses Landlock: nothing may run then."""
    with pytest.raises(confinement.SandboxError, match="Landlock"):
        attempt(escape, "nothing", layers=ALL_LAYERS & ~missing)


def test_an_old_kernel_runs_nothing() -> None:
    for abi in (0, 1):
        with pytest.raises(confinement.SandboxError, match="Landlock 2"):
            confinement.handled(abi)
    assert confinement.handled(2) == ((1 << 14) - 1, 0, 0)


def test_a_missing_program_runs_nothing() -> None:
    with pytest.raises(confinement.SandboxError, match="not installed"):
        runner.run(runner.Command(["no-such-program"], timeout=60))


def test_a_script_is_no_program(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    with pytest.raises(confinement.SandboxError, match="ELF"):
        runner.run(runner.Command([str(script)], timeout=60))


def test_a_thread_is_confined(outside: Path, tmp_path: Path) -> None:
    import threading

    told: list[str] = []

    def work() -> None:
        confinement.confine_thread([confinement.Rule(str(outside), confinement.CHANGE)])
        (outside / "inside").write_text("written")
        try:
            (tmp_path / "outside").write_text("written")
        except PermissionError:
            told.append("held")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert told == ["held"]
    (tmp_path / "outside").write_text("the others are as free as before")


@pytest.mark.root
def test_a_mount_that_comes_in_between(outside: Path) -> None:
    """Whoever mounts over a folder that is held open changes nothing for those who hold it."""
    program = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[2])
from syntrop.toold import image
folder = sys.argv[1]
open(folder + "/file", "w").write("old")
before = image.capture(folder + "/file")
with image.Place(folder + "/file") as place:
    subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    image._restore_file(image.of_content(b"new", before), place, ".tmp")
    assert not os.path.exists(folder + "/file"), "written to what was mounted over it"
    subprocess.run(["umount", folder], check=True)
assert open(folder + "/file").read() == "new"
"""
    source = str(Path(confinement.__file__).parents[2])
    command = ["unshare", "--mount", sys.executable, "-c", program, str(outside), source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
