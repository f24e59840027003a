# SPDX-License-Identifier: Apache-2.0
"""Upgrading and removing a live installation with `units/install.sh`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from machine import Machine
from roots import TREE, TRIXIE, Roots, build_tools, builder_layers
from suite import CALL, DAEMONS, ENDPOINTS

INSTALL = "BUILD_ENV=/tools PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 /src/units/install.sh"
MODEL = "/run/syntrop/io.syntrop.Model1"


@pytest.fixture(scope="module")
def machine(roots: dict[str, Roots]) -> Iterator[Machine]:
    """An installed machine that has the compiler too, and no network: an upgrade fetches nothing."""
    layers = [*roots["trixie"].layers()[:-1], *builder_layers(TRIXIE)]
    binds = [(str(TREE), "/src", True), (str(build_tools(TRIXIE)), "/tools", False)]
    with Machine(layers, binds=binds, name="syntrop-install") as machine:
        yield machine


def product(machine: Machine) -> str:
    reply = json.loads(machine.run_python(CALL, MODEL, "org.varlink.service.GetInfo", "{}"))
    name: str = reply["parameters"]["product"]
    return name


def test_an_upgrade_under_running_daemons(machine: Machine) -> None:
    assert product(machine) == "modeld"
    machine.run("varlinkctl info /run/syntrop/io.syntrop.Inference1")
    before = machine.property("modeld.service", "MainPID")
    machine.run(
        "touch /var/lib/syntrop/modeld/kept; echo stale >/usr/lib/syntrop/lib/python3.13/site-packages/stale.py"
    )
    old = "/usr/lib/systemd/system/oldd.socket"  # as if the version before had had it
    machine.run(f"cd /usr/lib/syntrop && touch {old} && echo {old} >>installed-files")
    machine.run("cd /usr/lib/syntrop && sort -o installed-files installed-files")
    machine.run(f"{INSTALL} install", timeout=900.0)
    assert not machine.path(old).exists()
    for endpoint in ENDPOINTS:
        assert machine.property(endpoint.socket, "SubState") in ("listening", "running")
    assert product(machine) == "modeld"
    assert machine.property("modeld.service", "MainPID") != before
    assert machine.path("/var/lib/syntrop/modeld/kept").exists()
    assert machine.run("ls -d /usr/lib/syntrop*").stdout == "/usr/lib/syntrop\n"
    journal = machine.journal()
    assert "already active, refusing" not in journal  # what a socket says that is started under its service
    assert machine.run("systemctl --failed --no-legend").stdout == ""


def test_launchers_start_no_more_than_they_must(machine: Machine) -> None:
    for name in (*(daemon.name for daemon in DAEMONS), "syntropctl"):
        first = machine.path(f"/usr/lib/syntrop/bin/{name}").read_text().splitlines()[0]
        assert first == "#!/usr/lib/syntrop/bin/python3 -IS"
    assert machine.run("readlink /usr/bin/syntropctl").stdout.strip() == "/usr/lib/syntrop/bin/syntropctl"


def test_everything_is_byte_compiled(machine: Machine) -> None:
    # Compiled under its final name: a traceback must not point into a staging folder.
    program = """
import importlib.util, marshal, pathlib, sys
site = pathlib.Path("/usr/lib/syntrop/lib/python3.13/site-packages")
modules = [path for path in site.rglob("*.py") if "tests" not in path.parts and "test" not in path.parts]
assert len(modules) > 300
for path in modules:
    cached = pathlib.Path(importlib.util.cache_from_source(str(path)))
    assert cached.exists(), path
    code = marshal.loads(cached.read_bytes()[16:])
    assert code.co_filename == str(path), (code.co_filename, path)
"""
    machine.run_python(program, python="/usr/lib/syntrop/bin/python3")


def test_uninstall_and_install_again(machine: Machine) -> None:
    assert product(machine) == "modeld"
    machine.run("cp -a /usr/lib/syntrop /root/prefix")
    machine.run(f"{INSTALL} uninstall")
    assert machine.run("find /run/syntrop -type s").stdout == ""
    assert machine.run("systemctl list-unit-files --no-legend 'syntrop*' modeld.socket", check=False).stdout == ""
    left = machine.run("find /usr /etc/systemd -path /root -prune -o -name '*syntrop*' -print").stdout
    assert left == ""
    assert machine.path("/var/lib/syntrop/modeld/kept").exists()
    machine.run("mv /root/prefix /usr/lib/syntrop")
    machine.run(f"{INSTALL} install", timeout=900.0)
    assert product(machine) == "modeld"
