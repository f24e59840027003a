# SPDX-License-Identifier: Apache-2.0
"""`syntrop-triage`, which OnFailure= starts: built as the installer builds it, against the interface."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

TREE = Path(__file__).parents[2]
MONITORED = {
    "MONITOR_INVOCATION_ID": "0123456789abcdef0123456789abcdef",
    "MONITOR_SERVICE_RESULT": "signal",
    "MONITOR_EXIT_CODE": "killed",
    "MONITOR_EXIT_STATUS": "SEGV",
    "MONITOR_UNIT": "other.service",
}
OK = b'{"parameters":{}}'
# A daemon with the interface as it is, that writes down what it was told.
DAEMON = """
import json, os, sys
from syntrop.common import service
class Sentry1:
    async def ReportFailure(self, call, **told):
        with open(os.environ["TOLD"], "a") as file:
            file.write(json.dumps(told) + "\\n")
        return {}
def build(daemon):
    daemon.serve_varlink("systemd-sentry/sentry.sock", {"io.syntrop.Sentry1": Sentry1()})
service.run("systemd-sentry", (), build)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, by the line of install.sh that builds it, with every warning an error."""
    target = tmp_path_factory.mktemp("triage") / "syntrop-triage"
    found = re.search(r'^ *"\$\{CC:-cc\}" (?P<options>[^"]*) -o .*/(?P<source>src/[^"]*\.c)"$',
                      (TREE / "units/install.sh").read_text(), re.MULTILINE)  # fmt: skip
    assert found is not None
    cc = shlex.split(sysconfig.get_config_var("CC") or "cc")[:1]
    command = [*cc, *found["options"].split(), "-Wall", "-Wextra", "-Werror", "-o", str(target), found["source"]]
    subprocess.run(command, check=True, cwd=TREE)
    return target


@contextmanager
def answering(root: Path, reply: bytes | None) -> Iterator[list[dict[str, Any]]]:
    """A socket that gives each caller one reply, or hangs up; what it was asked."""
    folder = root / "systemd-sentry"
    folder.mkdir(exist_ok=True)
    path = folder / "sentry.sock"
    asked: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    data = b""
                    while not data.endswith(b"\0") and (part := peer.recv(65536)):
                        data += part
                    if data:
                        asked.append(json.loads(data[:-1]))
                    if reply is not None:
                        peer.sendall(reply + b"\0")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            path.unlink()


def report(program: Path, root: Path, unit: str, **monitored: str) -> subprocess.CompletedProcess[str]:
    environment = {"SYNTROP_RUN_ROOT": str(root), **monitored}
    return subprocess.run(
        [str(program), unit], env=environment, check=False, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("unit", ["web.service", r"a\x2db@c\x20d.service", "x" * 247 + ".service"])
def test_what_the_manager_knows_is_told(program: Path, tmp_path: Path, unit: str) -> None:
    with answering(tmp_path, OK) as asked:
        done = report(program, tmp_path, unit, **MONITORED)
    assert (done.returncode, done.stderr) == (0, "")
    assert asked == [
        {
            "method": "io.syntrop.Sentry1.ReportFailure",
            "parameters": {
                "unit": unit,
                "invocation_id": MONITORED["MONITOR_INVOCATION_ID"],
                "result": "signal",
                "exit_code": "killed",
                "exit_status": "SEGV",
            },
        }
    ]


def test_it_knocks_on_whom_sentry_will_ask(program: Path, tmp_path: Path) -> None:
    """A connection without a word starts a daemon that sleeps."""
    (tmp_path / "syntrop").mkdir()
    with socket.socket(socket.AF_UNIX) as contextd, socket.socket(socket.AF_UNIX) as toold:
        for listener, name in ((contextd, "io.syntrop.Context1"), (toold, "io.syntrop.Tool1")):
            listener.bind(str(tmp_path / "syntrop" / name))
            listener.listen()
            listener.settimeout(30)
        with answering(tmp_path, OK):
            assert report(program, tmp_path, "web.service").returncode == 0
        for listener in (contextd, toold):
            with listener.accept()[0] as peer:
                assert peer.recv(1) == b""


def test_without_a_word_of_the_manager_the_name_is_told(program: Path, tmp_path: Path) -> None:
    with answering(tmp_path, OK) as asked:
        assert report(program, tmp_path, "web.service", MONITOR_EXIT_CODE="").returncode == 0
    assert asked[0]["parameters"] == {"unit": "web.service"}


def test_values_cannot_break_the_message(program: Path, tmp_path: Path) -> None:
    with answering(tmp_path, OK) as asked:
        report(
            program,
            tmp_path,
            "web.service",
            MONITOR_EXIT_STATUS='1"},"x":{"y\n\x01\\',
            MONITOR_EXIT_CODE="e" * 9999,
        )
    assert asked[0]["parameters"]["exit_status"] == '1"},"x":{"y??\\'
    assert asked[0]["parameters"]["exit_code"] == "e" * 1024


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b'{"error":"org.varlink.service.PermissionDenied","parameters":{}}', "PermissionDenied"),
        (None, "it hung up"),
        (b"x" * 70000, "its answer does not end"),
    ],
)
def test_what_goes_wrong_is_said(program: Path, tmp_path: Path, reply: bytes | None, why: str) -> None:
    with answering(tmp_path, reply):
        done = report(program, tmp_path, "web.service")
    assert done.returncode == 1
    assert done.stderr.startswith("<3>The failure of web.service could not be told to systemd-sentry: ")
    assert why in done.stderr


def test_a_socket_that_is_not_there_is_said_and_not_waited_for(program: Path, tmp_path: Path) -> None:
    done = report(program, tmp_path, "web.service")
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr
    assert report(program, tmp_path / ("d" * 100), "web.service").stderr.count("too long") == 1
    assert subprocess.run([str(program)], check=False, capture_output=True).returncode == 2


def test_the_interface_takes_it_and_a_storm_starts_no_interpreter(program: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    environment = {
        "SYNTROP_RUN_ROOT": str(tmp_path), "SYNTROP_CONFIG_ROOT": str(tmp_path), "TOLD": str(told),
        "PYTHONPATH": str(TREE / "src"), "STATE_DIRECTORY": str(tmp_path / "state"),
    }  # fmt: skip
    path = tmp_path / "systemd-sentry/sentry.sock"
    path.parent.mkdir()
    units = [f"unit-{number}.service" for number in range(200)]
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, f"--listen={path}"], env=environment)
    try:
        wait_for(lambda: path.exists() or daemon.poll() is not None, "it listens", 60)
        assert daemon.poll() is None
        storm = [
            subprocess.Popen([str(program), unit], env={"SYNTROP_RUN_ROOT": str(tmp_path), **MONITORED})
            for unit in units
        ]
        assert [one.wait(60) for one in storm] == [0] * len(units)
    finally:
        daemon.terminate()
        daemon.wait(30)
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert sorted(one["unit"] for one in lines) == sorted(units)
    assert {one["exit_status"] for one in lines} == {"SEGV"}
