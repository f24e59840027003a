# SPDX-License-Identifier: Apache-2.0
"""The store under a real systemd: a download has a process of its own, with the network and without the store."""

from __future__ import annotations

import json

from machine import Machine
from suite import CALL

MODEL1 = "/run/syntrop/io.syntrop.Model1"
FETCH1 = "/run/syntrop/io.syntrop.Fetch1"

# A model of one tensor, served from a folder. Arguments: folder, name.
SERVE = """
import hashlib, json, os, struct, sys
folder, name = sys.argv[1:]
header = json.dumps({name: {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
os.makedirs(folder, exist_ok=True)
data = struct.pack("<Q", len(header)) + header + bytes(8)
with open(os.path.join(folder, name + ".safetensors"), "wb") as file:
    file.write(data)
print("sha256:" + hashlib.sha256(data).hexdigest())
"""


def serve(machine: Machine, name: str) -> str:
    """Put a model on the machine's web server; its digest."""
    digest = machine.run_python(SERVE, "/srv/web", name).strip()
    server = "python3 -m http.server -b 127.0.0.1 -d /srv/web 8000"
    machine.run(f"systemctl is-active -q web || systemd-run -q --unit web {server}")
    machine.run("until curl -sf http://127.0.0.1:8000/ >/dev/null; do sleep 0.1; done")
    return digest


def test_a_download_has_a_process_of_its_own(machine: Machine) -> None:
    digest = serve(machine, "first")
    shown = machine.run("syntropctl models pull http://127.0.0.1:8000/first.safetensors --json").stdout
    assert json.loads(shown)["digest"] == digest
    assert json.loads(shown)["id"] == "first:latest"
    units = machine.run(
        "journalctl --sync && journalctl -o json --output-fields=UNIT,MESSAGE -u 'modeld-pull@*'"
    ).stdout
    assert "modeld-pull@" in units
    # It is gone with its connection, and leaves nothing failed.
    machine.run("until ! systemctl is-active -q 'modeld-pull@*.service'; do sleep 0.1; done")
    assert machine.run("systemctl --failed --no-legend").stdout.strip() == ""


def test_only_the_store_may_have_something_fetched(machine: Machine) -> None:
    program = f"import socket; socket.socket(socket.AF_UNIX).connect({FETCH1!r})"
    done = machine.run(["runuser", "-u", "nobody", "--", "python3", "-c", program], check=False)
    assert "Permission denied" in done.stderr
    assert machine.property("modeld.service", "PrivateNetwork") == "yes"


def test_the_network_sees_nothing_of_the_store(machine: Machine) -> None:
    machine.run("systemctl start modeld-pull.socket")
    # What a download's process may see, by the same unit with another program.
    look = "/bin/sh -c 'id -un; ls /var/lib/syntrop 2>&1; touch /srv/x 2>&1; exit 0'"
    drop_in = "/run/systemd/system/modeld-pull@.service.d/look.conf"
    machine.write(drop_in, f"[Service]\nExecStart=\nExecStart={look}\n")
    machine.run("systemctl daemon-reload")
    try:
        machine.run(["python3", "-c", f"import socket; socket.socket(socket.AF_UNIX).connect({FETCH1!r})"])
        machine.run("until journalctl -u 'modeld-pull@*' | grep -q /srv/x; do sleep 0.1; done")
        said = machine.run("journalctl -o cat -u 'modeld-pull@*' --since=-60s").stdout
        assert "modeld-pull" in said
        assert "Permission denied" in said
        assert "Read-only file system" in said
        assert "modeld\n" not in said
    finally:
        machine.run("rm -r /run/systemd/system/modeld-pull@.service.d && systemctl daemon-reload")


def test_a_credential_is_passed_on(machine: Machine) -> None:
    serve(machine, "second")
    # As systemd has it on a host; in a container it leaves mounts private, where credentials do not come through.
    machine.run("mount --make-rshared /")
    machine.run("mkdir -p /etc/credstore && echo 'not a line' >/etc/credstore/modeld.pull")
    machine.run("syntropctl models pull http://127.0.0.1:8000/second.safetensors")
    # Not by unit: of a process that has ended meanwhile journald cannot tell it.
    machine.run("until journalctl | grep -q 'modeld.pull is not used: line 1'; do sleep 0.1; done")
    machine.run("rm /etc/credstore/modeld.pull")


def test_inside_the_sandbox_a_part_can_be_sealed_and_a_folder_stored(machine: Machine) -> None:
    serve(machine, "fourth")
    machine.run("mkdir -p /srv/folder && cp /srv/web/fourth.safetensors /srv/folder/model.safetensors")
    machine.run("echo '{}' >/srv/folder/config.json && chmod 700 /srv/folder")
    machine.run("syntropctl models import /srv/folder --name folder:v1")
    part = {"id": "folder", "file": "model.safetensors", "offset": 8, "length": 10}
    reply = json.loads(machine.run_python(CALL, MODEL1, "io.syntrop.Model1.OpenSealed", json.dumps(part)))
    assert reply["parameters"]["size"] == 10


def test_pins_pruning_and_fsck_as_the_operator_sees_them(machine: Machine) -> None:
    digest = serve(machine, "third")
    machine.run("syntropctl models pull http://127.0.0.1:8000/third.safetensors --name third:v1")
    machine.run("syntropctl models pin third")
    machine.run("syntropctl models prune --max-bytes 0")
    assert "third:v1" in machine.run("syntropctl models").stdout
    machine.run("echo x >>/var/lib/syntrop/modeld/blobs/sha256/" + digest.removeprefix("sha256:"))
    done = machine.run("syntropctl models fsck", check=False)
    assert digest in done.stdout
    assert (
        json.loads(machine.run_python(CALL, MODEL1, "io.syntrop.Model1.List", "{}"))["parameters"]["models"] == []
    )
