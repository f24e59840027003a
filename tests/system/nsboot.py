# SPDX-License-Identifier: Apache-2.0
"""The half of the test machine that runs inside fresh namespaces: a program of its own, without dependencies.

`nsboot.py boot SPEC` lays an overlay over read-only layers and runs its init as PID 1 in new mount, PID, network,
IPC, UTS and cgroup namespaces, with cgroup v2 as the only hierarchy. `nsboot.py chroot SPEC` runs one command on
such an overlay, kept in a folder, with the host's network: that is how layers are built. SPEC is JSON:

    layers  read-only folders, topmost first
    upper   folder that keeps the changes (chroot), or null: changes live in memory
    binds   [[host, guest, read_only], …]
    argv    what to run
    env     its whole environment
    name    name of the machine and of its control group (boot)

The first line of standard output of `boot` is the PID of init in the caller's PID namespace. Whoever started this
program takes everything with it when it dies (PDEATHSIG all the way down).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from typing import Any, NoReturn

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x02000000,
    0x04000000,
    0x08000000,
    0x20000000,
    0x40000000,
)
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
QUIET = MS_NOSUID | MS_NODEV | MS_NOEXEC

# There is no console and no kernel of the guest's own; without these the machine counts as degraded.
MASKED = ("console-getty.service", "systemd-modules-load.service")

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    check(libc.mount(text(source), text(target), text(kind), flags, text(data)), f"mount {kind} {target}")


def try_mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    """For file systems that not every kernel has and no test here depends on."""
    try:
        mount(source, target, kind, flags)
    except OSError as error:
        print(f"nsboot: {error}", file=sys.stderr)


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    mount(source, target, None, MS_BIND | MS_REC)
    if read_only:
        mount(source, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)


def touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def die_with_parent() -> None:
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def overlay(spec: dict[str, Any], scratch: str, root: str) -> None:
    upper = spec["upper"]
    if upper is None:
        mount("tmpfs", scratch, "tmpfs", 0, "mode=755")
        upper, work = f"{scratch}/upper", f"{scratch}/work"
        os.makedirs(upper)
    else:
        work = f"{upper}.work"  # overlayfs wants it on the same file system
    os.makedirs(work, exist_ok=True)
    lower = ":".join(spec["layers"])
    mount("overlay", root, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")


def devices(root: str) -> None:
    mount("tmpfs", f"{root}/dev", "tmpfs", MS_NOSUID, "mode=755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        touch(f"{root}/dev/{name}")
        bind(f"/dev/{name}", f"{root}/dev/{name}")
    touch(f"{root}/dev/console")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(f"{root}/dev/{name}")
    mount("devpts", f"{root}/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620,gid=5")
    os.symlink("pts/ptmx", f"{root}/dev/ptmx")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def place_binds(spec: dict[str, Any], root: str) -> None:
    for host, guest, read_only in spec["binds"]:
        target = root + guest
        if os.path.isdir(host):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if not os.path.lexists(target):
                touch(target)
        bind(host, target, read_only=read_only)


def enter(root: str) -> None:
    """pivot_root(2) onto `root`, so that nothing of the host stays reachable."""
    os.chdir(root)
    os.makedirs(".old", exist_ok=True)
    check(libc.syscall(SYS_PIVOT_ROOT, b".", b".old"), "pivot_root")
    check(libc.umount2(b"/.old", MNT_DETACH), "umount")
    os.chdir("/")
    os.rmdir("/.old")


def guest_mounts(root: str) -> None:
    mount("proc", f"{root}/proc", "proc", QUIET)
    mount("sysfs", f"{root}/sys", "sysfs", QUIET | MS_RDONLY)
    # Writable, these would let the guest's udev and sysctl reach the host. The network's part is our own.
    bind(f"{root}/proc/sys", f"{root}/proc/sys")
    bind(f"{root}/proc/sys/net", f"{root}/proc/sys/net")
    mount("proc", f"{root}/proc/sys", None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    for name in ("sysrq-trigger", "kcore"):
        if os.path.exists(f"{root}/proc/{name}"):
            bind("/dev/null", f"{root}/proc/{name}")
    mount("cgroup2", f"{root}/sys/fs/cgroup", "cgroup2", QUIET, "nsdelegate")
    try_mount("securityfs", f"{root}/sys/kernel/security", "securityfs")
    try_mount("bpf", f"{root}/sys/fs/bpf", "bpf")
    devices(root)
    try_mount("mqueue", f"{root}/dev/mqueue", "mqueue")
    mount("tmpfs", f"{root}/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    os.makedirs(f"{root}/run/systemd/system")
    for unit in MASKED:
        os.symlink("/dev/null", f"{root}/run/systemd/system/{unit}")


def remove_group(path: str) -> None:
    for folder, _, _ in sorted(os.walk(path), key=lambda entry: -len(entry[0])):
        try:
            os.rmdir(folder)
        except OSError as error:
            print(f"nsboot: {error}", file=sys.stderr)


def run_init(spec: dict[str, Any], scratch: str, root: str) -> NoReturn:
    overlay(spec, scratch, root)
    guest_mounts(root)
    place_binds(spec, root)
    socket.sethostname(spec["name"])
    enter(root)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.execve(spec["argv"][0], spec["argv"], spec["env"])


def boot(spec: dict[str, Any], folder: str) -> int:
    scratch, root, hierarchy = f"{folder}/scratch", f"{folder}/root", f"{folder}/cgroup"
    for path in (scratch, root, hierarchy):
        os.makedirs(path, exist_ok=True)
    check(libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("cgroup2", hierarchy, "cgroup2")
    group = f"{hierarchy}/{spec['name']}"
    os.mkdir(group)
    with open(f"{group}/cgroup.procs", "w") as procs:
        procs.write("0")
    flags = CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    check(libc.unshare(flags), "unshare")
    child = os.fork()
    if child == 0:
        die_with_parent()
        # Mounts of its own: pivot_root(2) takes every process of a mount namespace along, and we have to clean up.
        check(libc.unshare(CLONE_NEWNS), "unshare")
        run_init(spec, scratch, root)
    with open(f"{hierarchy}/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    remove_group(group)
    return os.waitstatus_to_exitcode(status)


def chroot(spec: dict[str, Any], folder: str) -> int:
    scratch, root = f"{folder}/scratch", f"{folder}/root"
    for path in (scratch, root):
        os.makedirs(path, exist_ok=True)
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWPID), "unshare")
    child = os.fork()
    if child == 0:
        die_with_parent()
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        overlay(spec, scratch, root)
        mount("proc", f"{root}/proc", "proc", QUIET)
        devices(root)
        mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
        place_binds(spec, root)
        enter(root)
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> int:
    die_with_parent()
    verb, folder, text = sys.argv[1:]
    spec = json.loads(text)
    return boot(spec, folder) if verb == "boot" else chroot(spec, folder)


if __name__ == "__main__":
    code = main()
    sys.exit(code if code >= 0 else 128 - code)
