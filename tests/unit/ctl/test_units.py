# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from syntrop.ctl import programs, units
from syntrop.ctl.unitfile import UnitError
from syntrop.ctl.up import unhonoured

SPECIFIERS = {"t": "/r", "S": "/s", "C": "/c", "L": "/l", "E": "/e", "h": "/h", "u": "me", "U": "1"}


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


SOCKET = "[Socket]\nListenStream=/run/a\n"
SERVICE = "[Service]\nExecStart=/bin/a\n"


def test_our_own_units_load_and_are_found():
    catalogue = units.load(units.default_folder(), SPECIFIERS)
    assert set(catalogue.services) == {
        f"{name}.service"
        for name in ("routerd", "inferenced", "modeld", "contextd", "toold", "runtimed", "systemd-sentry")
    } | {"modeld-pull@.service", "inferenced-lookout@.service"}
    assert catalogue.warnings == []
    router = catalogue.sockets["routerd.socket"]
    assert router.addresses[:2] == ["127.0.0.1:32768", "[::1]:32768"]
    assert [unit.name for unit in catalogue.sockets_of("inferenced.service")] == [
        "inferenced.socket",
        "inferenced-enclave.socket",
    ]
    assert catalogue.sockets["modeld-pull.socket"].service == "modeld-pull@.service"
    for service in catalogue.services.values():
        if service.name in ("modeld-pull@.service", "inferenced-lookout@.service"):
            continue
        assert service.type == "notify"
        assert service.watchdog > 0
        # what is said at start to have no effect is the sandbox, not the way of life
    assert not {"Type", "WatchdogSec", "Restart", "UMask", "LimitNOFILE", "ExecStart"} & set(catalogue.unhonoured)
    assert "ProtectSystem= " in unhonoured(catalogue)


def test_every_socket_of_ours_is_enabled_with_the_target():
    folder = units.default_folder()
    assert set(units.load(folder, SPECIFIERS).sockets) == {path.name for path in Path(folder).glob("*.socket")}


def test_the_sockets_of_others_in_the_systems_folder_are_not_ours(tmp_path):
    write(tmp_path, a__socket=SOCKET, a__service=SERVICE, syslog__socket="[Socket]\nListenDatagram=/run/log\n")
    (tmp_path / "syntrop-sockets.target").write_text(
        "[Install]\nWantedBy=sockets.target\nAlso=a.socket b.socket\n"
    )
    catalogue = units.load(str(tmp_path), SPECIFIERS)
    assert set(catalogue.sockets) == {"a.socket"}
    assert set(catalogue.services) == {"a.service"}


def test_defaults_are_systemds(tmp_path):
    write(tmp_path, a__socket=SOCKET, a__service=SERVICE)
    catalogue = units.load(str(tmp_path), SPECIFIERS)
    socket, service = catalogue.sockets["a.socket"], catalogue.services["a.service"]
    assert (socket.mode, socket.directory_mode, socket.descriptor_name) == (0o666, 0o755, "a.socket")
    assert (socket.trigger_interval, socket.trigger_burst) == (2.0, 20)
    assert (service.type, service.umask, service.restart, service.restart_delay) == ("simple", 0o022, "no", 0.1)
    assert (service.timeout_start, service.timeout_stop, service.watchdog) == (90.0, 90.0, 0.0)
    assert service.notify_access == "none"


def test_the_last_setting_of_a_socket_unit_holds_for_all_of_it(tmp_path):
    text = SOCKET + "SocketMode=0600\nListenStream=%t/b\nSocketMode=0660\nFileDescriptorName=x\n"
    write(tmp_path, a__socket=text, a__service=SERVICE)
    unit = units.load(str(tmp_path), SPECIFIERS).sockets["a.socket"]
    assert (unit.addresses, unit.mode, unit.descriptor_name) == (["/run/a", "/r/b"], 0o660, "x")


def test_drop_ins_are_read_in_the_order_of_their_names(tmp_path):
    write(tmp_path, a__socket=SOCKET, a__service=SERVICE)
    (tmp_path / "a.service.d").mkdir()
    (tmp_path / "a.service.d/20-b.conf").write_text("[Service]\nUMask=0001\n")
    (tmp_path / "a.service.d/10-a.conf").write_text("[Service]\nUMask=0002\nExecStart=\nExecStart=/bin/b\n")
    service = units.load(str(tmp_path), SPECIFIERS).services["a.service"]
    assert (service.umask, service.command_line) == (0o001, "/bin/b")


@pytest.mark.parametrize(
    ("socket", "service", "said"),
    [
        ("[Socket]\n", SERVICE, "no ListenStream"),
        (SOCKET + "SocketMode=rw\n", SERVICE, "a.socket: SocketMode=: not an octal mode"),
        (SOCKET, "[Service]\n", "0 ExecStart"),
        (SOCKET, SERVICE + "Type=forking\n", "Type=forking is not supported"),
        (SOCKET, SERVICE + "Restart=often\n", "Restart=often is not supported"),
        (SOCKET, SERVICE + "Environment=%q\n", "Environment=: specifier %q"),
        (SOCKET + "Service=b.service\n", SERVICE, "has a socket for b.service"),
    ],
)
def test_what_cannot_be_right_is_named(tmp_path, socket, service, said):
    write(tmp_path, a__socket=socket, a__service=service)
    with pytest.raises(UnitError, match=said.replace("(", r"\(")):
        units.load(str(tmp_path), SPECIFIERS)


def test_a_folder_without_sockets(tmp_path):
    with pytest.raises(UnitError, match=r"no \*\.socket files"):
        units.load(str(tmp_path), SPECIFIERS)


def test_what_is_not_honoured_is_counted(tmp_path):
    write(
        tmp_path, a__socket=SOCKET + "IPAddressDeny=any\n", a__service=SERVICE + "PrivateTmp=yes\nSlice=x.slice\n"
    )
    catalogue = units.load(str(tmp_path), SPECIFIERS)
    assert catalogue.unhonoured == {"IPAddressDeny": ["a.socket"], "PrivateTmp": ["a.service"]}


def test_programs_are_this_environments(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert programs.resolve(["/usr/bin/strange", "x"]) == (["/usr/bin/strange", "x"], {})
    source = str(Path(units.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.path.relpath(source))
    words, variables = programs.resolve(["/usr/lib/syntrop/bin/systemd-sentry"])
    assert words == [str(tmp_path / "python"), "-P", "-s", "-m", "syntrop.sentry"]
    assert variables == {"PYTHONPATH": source}
    monkeypatch.delenv("PYTHONPATH")
    words, variables = programs.resolve(["/usr/lib/syntrop/bin/modeld", "x"])
    assert (words[1:], variables) == (["-I", "-m", "syntrop.modeld", "x"], {})
    beside = tmp_path / "modeld"
    beside.write_text("#!/bin/sh\n")
    beside.chmod(0o755)
    assert programs.resolve(["/usr/lib/syntrop/bin/modeld", "x"]) == ([str(beside), "x"], {})


def test_a_service_sees_a_small_environment(tmp_path):
    text = SERVICE + (
        'Environment=A=1 B=2\nEnvironmentFile=-/nowhere\nEnvironmentFile=%h/file\nPassEnvironment=MINE\n'
        "UnsetEnvironment=B LANG=C\n"
    )  # fmt: skip
    (tmp_path / "file").write_text("A=from file\n")
    write(tmp_path, a__socket=SOCKET, a__service=text)
    service = units.load(str(tmp_path), {**SPECIFIERS, "h": str(tmp_path)}).services["a.service"]
    inherited = {"PATH": "/bin", "SECRET": "x", "MINE": "m", "LANG": "C", "LC_ALL": "C", "SYNTROP_RUN_ROOT": "/r"}
    assert programs.environment(service, inherited) == {
        "PATH": "/bin", "MINE": "m", "LC_ALL": "C", "SYNTROP_RUN_ROOT": "/r", "A": "from file",
    }  # fmt: skip
    (tmp_path / "file").unlink()
    with pytest.raises(FileNotFoundError):
        programs.environment(service, inherited)
