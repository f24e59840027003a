# SPDX-License-Identifier: Apache-2.0
"""`syntropctl up` with small services of known habits: what it promises, sentence by sentence."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SERVICE = """
import json, os, select, signal, socket, subprocess, sys, time
idle = float(os.environ.get("SYNTROP_IDLE_EXIT_SEC", "30"))
count = int(os.environ["LISTEN_FDS"])
listeners = [socket.socket(fileno=3 + index) for index in range(count)]
at_start = [[number, os.path.lexists(f"/proc/self/fd/{number}")] for number in range(40)]
at_start = [number for number, there in at_start if there]
def tell(text):
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
with open(os.path.join(os.environ["STATE_DIRECTORY"], "starts"), "a") as file:
    file.write(f"{time.monotonic()}\\n")
if os.path.exists(os.path.join(os.environ["STATE_DIRECTORY"], "broken")):
    sys.exit(3)
tell("READY=1\\nSTATUS=at your service")
end = time.monotonic() + 3600
while True:
    ready, _, _ = select.select(listeners, [], [], idle)
    if not ready:
        break
    for listener in ready:
        peer, _ = listener.accept()
        order = peer.recv(1000).decode()
        if order == "facts":
            names = [one.getsockname() for one in listeners]
            names = [name.decode() if isinstance(name, bytes) else name for name in names]
            stats = os.popen("ulimit -n").read().strip()
            answer = json.dumps({
                "environment": dict(os.environ), "pid": os.getpid(), "names": names, "cwd": os.getcwd(),
                "descriptors": at_start, "umask": os.umask(0o77),
                "nofile": stats, "arguments": sys.argv[1:], "session": os.getsid(0),
                "privileges": open("/proc/self/status").read().count("NoNewPrivs:\\t1"),
            })
        elif order == "breed":
            # A child of its own session and clean environment, as a tool runner might have.
            child = subprocess.Popen(["sleep", "600"], start_new_session=True, env={"PATH": "/usr/bin:/bin"})
            answer = str(child.pid)
        elif order == "crash":
            os._exit(3)
        elif order == "hang":
            time.sleep(600)
        elif order == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            answer = "what?"
        else:
            answer = order
        peer.sendall(answer.encode())
        peer.close()
"""

FIRST = """
[Socket]
ListenStream=/run/syntrop/first
ListenStream=127.0.0.1:32768
ListenStream=/run/syntrop/second
SocketMode=0640
TriggerLimitBurst=1000
"""

UNIT = """
[Unit]
Description=A service of known habits
[Service]
Type=notify
ExecStart=/usr/bin/python3 -I {script} one "two three" ${{PLACE}}
Environment=PLACE=here "QUOTED=a b"
Environment=RUNTIME=%t NAME=%N
StateDirectory=syntrop/habits
LimitNOFILE=777
UMask=0027
NoNewPrivileges=yes
Restart=no
RestartSec=0.2
PrivateTmp=yes
ProtectSystem=strict
{more}
"""


@pytest.fixture
def units(tmp_path: Path) -> Callable[..., Path]:
    def write(more: str = "", **files: str) -> Path:
        script = tmp_path / "service.py"
        script.write_text(SERVICE)
        (tmp_path / "habits.socket").write_text(FIRST)
        (tmp_path / "habits.service").write_text(UNIT.format(script=script, more=more))
        for name, text in files.items():
            (tmp_path / name.replace("__", ".").replace("_", "-")).write_text(text)
        return tmp_path

    return write


def ask(path: str, order: str, seconds: float = 60.0) -> str:
    """One connection, one order; the answer until the service hangs up."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(seconds)
        peer.connect(path)
        peer.sendall(order.encode())
        parts = []
        while part := peer.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


def starts(suite) -> list[float]:
    path = Path(suite.state, "syntrop/habits/starts")
    return [float(line) for line in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it goes between opening and reading
        return False


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        select.select([], [], [], 0.01)


def test_a_service_gets_what_its_units_say(units, launch):
    more = "[Socket]\nListenStream=/run/syntrop/third\nListenStream=@syn-test-%i-third\nService=habits.service\n"
    more = more.replace("%i", str(os.getpid()))
    suite = launch(units=units(a_other__socket=more + "FileDescriptorName=others\nSocketMode=0600\n"), idle=30)
    assert suite.awake() == []
    facts = json.loads(ask(suite.endpoint("second"), "facts"))
    environment = facts["environment"]
    # The service's own socket unit first, in the order of its lines; then the other unit's.
    assert facts["names"] == [
        suite.endpoint("first"), ["127.0.0.1", suite.port], suite.endpoint("second"),
        suite.endpoint("third"), f"\0syn-test-{os.getpid()}-third",
    ]  # fmt: skip
    assert environment["LISTEN_FDS"] == "5"
    assert environment["LISTEN_FDNAMES"] == "habits.socket:habits.socket:habits.socket:others:others"
    assert environment["LISTEN_PID"] == str(facts["pid"])
    assert environment["SYNTROP_RUN_ROOT"] == environment["RUNTIME"] == suite.root
    assert environment["SYNTROP_IDLE_EXIT_SEC"] == "30"
    assert environment["STATE_DIRECTORY"] == os.path.join(suite.state, "syntrop/habits")
    assert (environment["QUOTED"], environment["NAME"]) == ("a b", "habits")
    assert facts["arguments"] == ["one", "two three", "here"]
    # Standard ones, five sockets, and nothing of ours.
    assert facts["descriptors"] == list(range(8))
    assert (facts["nofile"], facts["umask"], facts["cwd"]) == ("777", 0o027, "/")
    assert facts["session"] == facts["pid"]
    assert facts["privileges"] == 1
    modes = [stat.S_IMODE(os.stat(suite.endpoint(name)).st_mode) for name in ("first", "second", "third")]
    assert modes == [0o640, 0o640, 0o600]
    assert "RUNTIME_DIRECTORY" not in environment


def test_what_cannot_be_honoured_is_said_once_at_start(units, launch):
    suite = launch(units=units())
    lines = [line for line in suite.log().splitlines() if "not enforced here" in line]
    assert len(lines) == 1
    assert "PrivateTmp= ProtectSystem=" in lines[0]
    assert "UMask" not in lines[0]


def test_an_idle_service_goes_and_its_socket_starts_it_again(units, launch):
    suite = launch(units=units(), idle=0.2)
    first = ask(suite.endpoint("first"), "one")
    suite.wait_asleep()
    with socket.create_connection(("127.0.0.1", suite.port), 60) as peer:
        peer.sendall(b"two")
        assert peer.recv(10) == b"two"
    suite.wait_asleep()
    assert first == "one"
    assert len(starts(suite)) == 2


def test_the_activator_sleeps_while_nothing_happens(units, launch):
    suite = launch(units=units(), idle=0.1)
    ask(suite.endpoint("first"), "one")
    suite.wait_asleep()
    wait_for(lambda: "finished" in suite.log(), "the end of the service was noticed")

    def wakeups() -> int:
        text = "".join(Path(f"/proc/{pid}/status").read_text() for pid in (suite.process.pid, suite.activator))
        return sum(map(int, re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.M)))

    woken = []
    for _ in range(9):  # what is noticed above is put down a moment later
        before = wakeups()
        select.select([], [], [], 1.0)  # the measurement itself
        woken.append(wakeups() - before)
        if woken[-1] == 0:
            break
    assert woken[-1] == 0, woken


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_in_order(units, launch, number):
    suite = launch(units=units(), idle=600)
    child = int(ask(suite.endpoint("first"), "breed"))
    assert alive(child)
    assert suite.stop(number) == 0
    assert not alive(child)


@pytest.mark.parametrize("who", ["keeper", "activator"])
def test_nothing_survives_a_kill(units, launch, who):
    suite = launch(units=units(), idle=600)
    child = int(ask(suite.endpoint("first"), "breed"))
    ask(suite.endpoint("first"), "deaf")
    [service] = suite.awake()
    os.kill(suite.process.pid if who == "keeper" else suite.activator, signal.SIGKILL)
    assert suite.process.wait(60) == (-signal.SIGKILL if who == "keeper" else 128 + signal.SIGKILL)
    wait_for(lambda: not any(map(alive, (suite.activator, service, child))), "everything of the suite gone")
    suite.assert_nothing_left()


def test_a_service_that_will_not_stop_is_killed(units, launch):
    suite = launch(units=units("TimeoutStopSec=0.3"), idle=600)
    ask(suite.endpoint("first"), "deaf")
    before = time.monotonic()
    suite.stop()
    assert time.monotonic() - before < 10
    assert "did not stop in time" in suite.log()


def test_children_of_a_dead_service_go_with_it(units, launch):
    suite = launch(units=units(), idle=600)
    facts = json.loads(ask(suite.endpoint("first"), "facts"))
    tool = subprocess.Popen(["true"])  # a pid of ours, to be sure that only the service's are touched
    tool.wait()
    os.kill(facts["pid"], signal.SIGKILL)
    wait_for(lambda: "killed by SIGKILL" in suite.log(), "the death was reported")
    assert suite.awake() == []
    assert ask(suite.endpoint("first"), "again") == "again"


def test_a_crash_loop_is_backed_off_and_its_connections_wait(units, launch):
    suite = launch(units=units("Restart=on-failure"), idle=600)
    broken = Path(suite.state, "syntrop/habits/broken")
    broken.parent.mkdir(parents=True)
    broken.touch()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(suite.endpoint("first"))
        peer.sendall(b"still here")
        wait_for(lambda: len(starts(suite)) >= 4, "four starts")
        times = starts(suite)
        gaps = [after - before for before, after in itertools.pairwise(times)][:3]
        # 0.2, 0.4, 0.8 s and the time that Python takes to start
        assert gaps[0] >= 0.2
        assert gaps[1] >= 0.4
        assert gaps[2] >= 0.8
        assert re.search(r"habits failed: exited with status 3 .*3 times in a row.*held for 0\.8 s", suite.log())
        broken.unlink()
        assert peer.recv(100) == b"still here"


def test_without_restart_a_crash_waits_for_the_next_connection(units, launch):
    suite = launch(units=units("RestartSec=0.1"), idle=600)
    assert ask(suite.endpoint("first"), "crash") == ""
    wait_for(lambda: "failed: exited with status 3" in suite.log(), "the crash was reported")
    select.select([], [], [], 0.3)  # well past the back-off: nobody asks, so nobody starts it
    assert len(starts(suite)) == 1
    assert ask(suite.endpoint("first"), "again") == "again"


def test_a_service_that_does_not_take_its_connection_is_not_spun(units, launch, tmp_path):
    script = tmp_path / "lazy.py"
    script.write_text(
        "import os, socket\n"
        "open(os.environ['STATE_DIRECTORY'] + '/starts', 'a').write('0\\n')\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "s.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\n"
    )
    folder = units()
    (folder / "habits.service").write_text(UNIT.format(script=script, more=""))
    (folder / "habits.socket").write_text(FIRST.replace("Burst=1000", "Burst=3\nTriggerLimitIntervalSec=60"))
    suite = launch(units=folder)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(suite.endpoint("first"))
        wait_for(lambda: "starts too often" in suite.log(), "the limit was reported")
        select.select([], [], [], 0.5)
        assert len(starts(suite)) == 3


def test_what_comes_after_the_end_comes_before_the_next_start(units, launch, tmp_path):
    """`ExecStopPost=`, after a kill as after an orderly end; a command that fails or hangs holds nobody up."""
    script = tmp_path / "after.sh"  # a shell is there at once, and well within the time that a command has
    script.write_text('echo after >>"$STATE_DIRECTORY/starts"\n[ "$1" = fail ] || exec sleep 600\nexit 4\n')
    lines = "".join(f"ExecStopPost=/bin/sh {script} {word}\n" for word in ("fail", "hang"))
    suite = launch(units=units(f"{lines}TimeoutStopSec=1.5"), idle=600)
    facts = json.loads(ask(suite.endpoint("first"), "facts"))
    os.kill(facts["pid"], signal.SIGKILL)
    assert ask(suite.endpoint("first"), "again") == "again"
    told = Path(suite.state, "syntrop/habits/starts").read_text().split()
    assert [word for word in told if word == "after"] == told[1:3]
    assert "ExecStopPost= of habits exited with status 4" in suite.log()
    assert "killed by SIGKILL after" in suite.log()


def test_a_missed_watchdog_is_the_end(units, launch):
    suite = launch(units=units("WatchdogSec=2\nTimeoutStopSec=5"), idle=600)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(suite.endpoint("first"))
        peer.sendall(b"hang")
        assert peer.recv(10) == b""
    wait_for(lambda: "missed its watchdog of 2 s, killed by SIGABRT" in suite.log(), "the kill was reported")
    facts = json.loads(ask(suite.endpoint("first"), "facts"))
    assert facts["environment"]["WATCHDOG_USEC"] == "2000000"
    assert facts["environment"]["WATCHDOG_PID"] == str(facts["pid"])


def test_a_service_that_never_gets_ready_is_taken_down(units, launch, tmp_path):
    script = tmp_path / "mute.py"
    script.write_text("import time\ntime.sleep(600)\n")
    folder = units()
    (folder / "habits.service").write_text(UNIT.format(script=script, more="TimeoutStartSec=0.5"))
    suite = launch(units=folder)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(suite.endpoint("first"))
        wait_for(lambda: "failed: not ready within 0.5 s" in suite.log(), "the verdict")


def test_a_program_that_does_not_exist_is_a_failure_not_an_end(units, launch):
    folder = units()
    text = (folder / "habits.service").read_text()
    (folder / "habits.service").write_text(text.replace("/usr/bin/python3", "/nowhere/nothing"))
    suite = launch(units=folder)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(suite.endpoint("first"))
        wait_for(lambda: "could not be executed (EXEC)" in suite.log(), "the failure was reported")


def test_reload_reads_the_units_again(units, launch):
    folder = units()
    suite = launch(units=folder, idle=600)
    assert ask(suite.endpoint("first"), "one") == "one"
    (folder / "habits.socket").write_text(FIRST + "ListenStream=/run/syntrop/new\n")
    text = (folder / "habits.service").read_text()
    (folder / "habits.service").write_text(text.replace("PLACE=here", "PLACE=there"))
    suite.process.send_signal(signal.SIGHUP)  # the service itself dies of SIGHUP: it does not know how to reload
    wait_for(lambda: "reloaded 1 services" in suite.log(), "the reload")
    wait_for(lambda: "killed by SIGHUP" in suite.log() or "finished" in suite.log() or not suite.awake(), "SIGHUP")
    facts = json.loads(ask(suite.endpoint("new"), "facts"))
    assert facts["arguments"][-1] == "there"
    assert facts["environment"]["LISTEN_FDS"] == "4"


def test_a_command_runs_under_the_suite_and_all_ends_with_it(units, launch):
    code = (
        "import os, socket, sys\n"
        "peer = socket.socket(socket.AF_UNIX)\n"
        "peer.connect(os.environ['SYNTROP_RUN_ROOT'] + '/syntrop/first')\n"
        "peer.sendall(b'hello'); print(peer.recv(10), flush=True); sys.exit(7)"
    )
    suite = launch(units=units(), idle=0.3, command=(sys.executable, "-c", code))
    out, _ = suite.process.communicate(timeout=60)
    assert out == b"b'hello'\n"
    assert suite.process.returncode == 7
    assert "habits finished" in suite.log()
    suite.assert_nothing_left()


def test_a_command_gets_our_signal(units, launch):
    suite = launch(units=units(), command=("sleep", "600"))
    assert suite.stop(signal.SIGTERM) == 128 + signal.SIGTERM


def test_a_command_that_does_not_exist(units, launch):
    suite = launch(units=units(), command=("/nowhere/nothing",))
    assert suite.process.wait(60) == 127
    suite.assert_nothing_left()


def up(folder: Path, environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "syntrop.ctl", "up", "--units", str(folder), *options]
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)


def test_the_holder_of_the_port_is_named(units, launch):
    suite = launch(units=units())
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        port = holder.stdout.readline().strip()
        other = {**suite.environment, "RUNTIME_DIRECTORY": os.path.join(suite.base, "other")}
        done = up(units(), other, "--port", port)
        holder.communicate("\n", timeout=60)
    assert done.returncode == 1
    assert f"port {port} is taken: process {holder.pid} (" in done.stderr
    assert "is listening on it" in done.stderr
    assert "Traceback" not in done.stderr
    assert not os.path.exists(other["RUNTIME_DIRECTORY"])


def test_two_activators_do_not_share_a_folder(units, launch):
    suite = launch(units=units())
    done = up(units(), suite.environment, "--port", "0")
    assert done.returncode == 1
    assert "another activator already serves" in done.stderr
    assert ask(suite.endpoint("first"), "unharmed") == "unharmed"


def test_a_unit_that_makes_no_sense_is_named(units, launch, tmp_path):
    folder = units("TimeoutStopSec=soon")
    done = up(folder, {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "src")}, "--port", "0")
    assert done.returncode == 1
    assert "habits.service: TimeoutStopSec=: not a time span: 'soon'" in done.stderr


def test_a_runtime_folder_that_was_there_is_left_as_it_was(units, launch, tmp_path):
    there = tmp_path / "r"
    there.mkdir()
    (there / "keep").write_text("me")
    suite = launch(units=units("RuntimeDirectory=habits"), environment={"RUNTIME_DIRECTORY": str(there)}, idle=600)
    suite.root = str(there)
    assert ask(suite.endpoint("first"), "hi") == "hi"
    assert (there / "habits").is_dir()
    suite.process.terminate()
    assert suite.process.wait(60) == 0
    assert sorted(os.listdir(there)) == ["keep"]
    suite.root = os.path.join(suite.base, "run")
