# SPDX-License-Identifier: Apache-2.0
"""What a control group takes from a tool, or from a holder that is frozen, under a kernel that enforces it: that
of a virtual machine without KVM. And the incidents that need such a kernel, or a clock of their own.

    make vm        (root; Debian's qemu-system-x86; a minute or two)

The machines of `tests/system` are namespaces of the host, whose control groups have no controllers for us: there
`memory.max`, `pids.max` and `cpu.max` do nothing. This one has a kernel of its own, on the same root folders. It
is no part of `make test`, as it emulates every instruction.
"""

from __future__ import annotations

import json
import lzma
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "system"))

from catalogue import FULL, cases  # noqa: E402
from machine import run_in_layers  # noqa: E402
from roots import TRIXIE, Roots, built, digest, network, release_layer  # noqa: E402

PATIENCE = 600  # seconds, on a machine that has other things to do
MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "vgem")
PROOFS = ("memory", "processes", "processors", "nothing is left", "vgem", "toold", "pushed out")
# toold itself first: its own unit delegates the controllers that its tools get.
RUN = """
syntropctl run disk_usage >/dev/null
group=/sys/fs/cgroup/syntrop.slice/toold.service
delegated=$(cat $group/tools/cgroup.subtree_control)
case $delegated in *memory*pids*) holds=true;; *) holds=false;; esac
echo "{\\"proof\\": \\"toold\\", \\"with\\": \\"$delegated\\", \\"without\\": null, \\"holds\\": $holds}"
systemd-run --quiet --wait --pipe --property=Delegate=yes /usr/lib/syntrop/bin/python3 -I /opt/proof.py
/usr/bin/python3 -I /opt/pushed.py
/usr/bin/python3 -I /opt/incidents.py
"""


def kernel() -> Path:
    """Debian's kernel (its cloud kernel knows no graphics) and a static busybox, unpacked."""
    release = release_layer(TRIXIE)

    def make(target: Path) -> None:
        binds, env = network()
        run_in_layers(
            [release],
            "cd /out && apt-get update -qq && apt-get download -qq busybox-static $(apt-cache depends "
            "linux-image-amd64 | sed -n 's/.*Depends: \\(linux-image[^ ]*\\)/\\1/p') && "
            "for package in *.deb; do dpkg -x $package . && rm $package; done",
            binds=[*binds, (str(target), "/out", False)],
            env=env,
        )

    return built(f"kernel-{release.name}-{digest('2')}", make)


def modules(folder: Path) -> dict[str, bytes]:
    """MODULES and all that they need, in the order to load them in."""
    files = {plain(path): path for path in (folder / "usr/lib/modules").rglob("*.ko*")}
    found: dict[str, bytes] = {}

    def add(name: str) -> None:
        path = files.get(name)
        if path is None or name in found:
            return  # built in, where there is no file
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = lzma.decompress(data)
        needs = re.search(rb"\0depends=([^\0]*)\0", data)
        for one in needs[1].decode().split(",") if needs else ():
            add(one.replace("-", "_"))
        found[name] = data

    for name in MODULES:
        add(name)
    return found


def plain(path: Path) -> str:
    return re.sub(r"\.ko.*", "", path.name).replace("-", "_")


def initrd(folder: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for name in ("bin", "dev", "proc", "root", "modules"):
            (root / name).mkdir()
        shutil.copy(folder / "usr/bin/busybox", root / "bin/busybox")
        shutil.copy(HERE / "init", root / "init")
        (root / "init").chmod(0o755)
        parts = modules(folder)
        for name, data in parts.items():
            (root / "modules" / name).write_bytes(data)
        (root / "modules/order").write_text("".join(f"{name}\n" for name in parts))
        listed = subprocess.check_output(["find", "."], cwd=root)
        with target.open("wb") as file:
            subprocess.run(
                ["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=listed, stdout=file, check=True
            )


def disk(layers: list[Path], extra: Path, target: Path) -> None:
    """A file system with all of these folders laid over one another."""
    lower = ":".join(str(one) for one in (extra, *layers))
    script = (
        'mount -t overlay none -o "lowerdir=$1" "$2" && truncate -s 2G "$3" && '
        'mke2fs -q -t ext4 -O ^has_journal -m 0 -E lazy_itable_init=1,nodiscard -d "$2" "$3"'
    )
    with tempfile.TemporaryDirectory() as mounted:
        command = ["unshare", "--mount", "sh", "-euc", script, "sh", lower, mounted, str(target)]
        subprocess.run(command, check=True)


def boot(folder: Path, image: Path, start: Path) -> list[str]:
    """What the machine said until it was off."""
    words = "console=ttyS0 quiet loglevel=3 mitigations=off random.trust_cpu=on systemd.show_status=no"
    words += " systemd.unit=proof.target"
    [linux] = (folder / "boot").glob("vmlinuz-*")
    command = ["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"]
    command += ["-smp", "2", "-m", "1536", "-nographic", "-nodefaults", "-no-reboot", "-serial", "stdio"]
    command += ["-kernel", str(linux), "-initrd", str(start), "-append", words]
    command += ["-drive", f"file={image},format=raw,if=virtio,cache=unsafe", "-device", "virtio-rng-pci"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False)
    return (done.stdout + done.stderr).decode(errors="replace").splitlines()


UNITS = {
    "proof.target": """[Unit]
Requires=multi-user.target proof.service
After=multi-user.target
AllowIsolate=yes
""",
    "proof.service": """[Unit]
After=multi-user.target
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
ExecStart=/bin/sh /opt/run.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
""",
}
MASKED = ("serial-getty@ttyS0.service", "console-getty.service", "systemd-firstboot.service")


def main() -> int:
    for program in ("qemu-system-x86_64", "mke2fs", "cpio"):
        if not shutil.which(program):
            print(f"{program} is missing; apt-get install qemu-system-x86 e2fsprogs cpio", file=sys.stderr)
            return 2
    began = time.monotonic()
    incidents = cases(tier=FULL)
    unpacked = kernel()
    layers = Roots(TRIXIE).layers()
    with tempfile.TemporaryDirectory(prefix="syntrop-vm.", dir="/var/tmp") as folder:
        extra, image, start = Path(folder, "extra"), Path(folder, "disk"), Path(folder, "initrd")
        units = extra / "etc/systemd/system"
        units.mkdir(parents=True)
        for name, text in UNITS.items():
            (units / name).write_text(text)
        for name in MASKED:
            (units / name).symlink_to("/dev/null")
        (extra / "opt").mkdir()
        for name in ("proof.py", "pushed.py", "incidents.py"):
            shutil.copy(HERE / name, extra / "opt" / name)
        for case in incidents:
            shutil.copytree(case.folder / "files", extra, dirs_exist_ok=True)
            shutil.copytree(case.folder, extra / "opt/incidents" / case.name)
        (extra / "opt/run.sh").write_text(RUN)
        initrd(unpacked, start)
        disk(layers, extra, image)
        print(f"built after {time.monotonic() - began:.0f} s", flush=True)
        said = boot(unpacked, image, start)
    told = {}
    for line in said:
        if found := re.search(r"\{.*\}", line):
            try:
                proof = json.loads(found[0])
            except ValueError:
                continue
            told[proof.get("proof")] = proof
    wanted = (*PROOFS, *(case.name for case in incidents))
    for name in wanted:
        proof = told.get(name, {"holds": False, "with": "not told", "without": None})
        verdict = "holds" if proof["holds"] else "DOES NOT HOLD"
        print(f"{name:<16} {verdict:<14} with the group: {proof['with']}, without: {proof['without']}")
    print(f"done after {time.monotonic() - began:.0f} s")
    if all(told.get(name, {}).get("holds") for name in wanted):
        return 0
    print("\n".join(said[-60:]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
