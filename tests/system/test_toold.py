# SPDX-License-Identifier: Apache-2.0
"""toold under a real service manager: remedies end to end, who may, what never, and how it is taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from arbiter import wait_for
from machine import Machine
from suite import CALL, set_idle

ENDPOINT = "/run/syntrop/io.syntrop.Tool1"
TOOL1 = "io.syntrop.Tool1."
DROP_IN = "/etc/systemd/system/victim.service.d/bad.conf"
BAD = "[Service]\nExecStart=\nExecStart=/usr/bin/false\n"
STATE = "/var/lib/syntrop/toold"


@pytest.fixture(scope="module")
def host(machine: Machine) -> Iterator[Machine]:
    """A machine with an operator, a service to act on, and rates that do not get into a test's way."""
    machine.run("useradd --no-create-home --groups syntrop helper")
    machine.write(
        "/etc/syntrop/toold.toml", "[rates]\nchanges_per_minute = 1000\nchanges_per_unit_per_minute = 1000\n"
    )
    machine.write(
        "/etc/systemd/system/victim.service",
        "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/usr/bin/sleep infinity\nCacheDirectory=victim\n",
    )
    machine.run("systemctl daemon-reload && systemctl start victim.service")
    yield machine


def call(machine: Machine, user: str | None, method: str, **parameters: Any) -> dict[str, Any]:
    """The whole reply: `parameters`, and `error` where it is one."""
    reply: dict[str, Any] = json.loads(
        machine.run_python(CALL, ENDPOINT, TOOL1 + method, json.dumps(parameters), user=user)
    )
    return reply


def execute(
    machine: Machine, name: str, *args: str, unit: str | None = None, user: str | None = "helper"
) -> dict[str, Any]:
    """What a tool did; it has to have worked."""
    reply = call(machine, user, "ExecuteTool", name=name, args=list(args), target_unit=unit)
    assert "error" not in reply, (reply, machine.journal("toold.service"))
    parameters: dict[str, Any] = reply["parameters"]
    return parameters


def roll_back(machine: Machine, rollback_id: str) -> str:
    reply = call(machine, "helper", "Rollback", rollback_id=rollback_id)
    assert "error" not in reply, (reply, machine.journal("toold.service"))
    back: str = reply["parameters"]["rollback_id"]
    return back


def state_of(machine: Machine, path: str) -> str:
    return machine.run(["stat", "-c", "%a %U %G %y", path]).stdout + machine.path(path).read_text()


def test_a_bad_drop_in_is_reverted_and_the_unit_runs_again(host: Machine) -> None:
    host.write(DROP_IN, BAD)
    host.run(
        f"chmod 640 {DROP_IN} && chown root:syntrop {DROP_IN} && touch -d '2026-01-02 03:04:05.678' {DROP_IN}"
    )
    before = state_of(host, DROP_IN)
    host.run("systemctl daemon-reload; systemctl restart victim.service", check=False)
    host.wait_property("victim.service", "ActiveState", "failed")

    reverted = execute(host, "revert_dropin", "bad.conf", unit="victim.service")
    assert not host.path(DROP_IN).exists()
    assert reverted["result"]["exit_code"] == 0
    assert host.property("victim.service", "NeedDaemonReload") == "no"
    execute(host, "unit_reset_failed", unit="victim.service")
    assert host.property("victim.service", "ActiveState") == "inactive"
    restarted = execute(host, "unit_restart", unit="victim.service")
    assert restarted.get("rollback_id") is None
    assert host.property("victim.service", "ActiveState") == "active"

    back = roll_back(host, reverted["rollback_id"])
    assert state_of(host, DROP_IN) == before
    assert host.property("victim.service", "DropInPaths") == DROP_IN
    roll_back(host, back)
    assert not host.path(DROP_IN).exists()
    assert host.property("victim.service", "DropInPaths") == ""

    listed = call(host, "nobody", "ListRollbacks")["parameters"]["records"]
    assert [one["target_unit"] for one in listed] == ["victim.service"] * 3
    assert [one["id"] for one in listed][1:] == [back, reverted["rollback_id"]]


def test_a_restart_that_fails_says_so(host: Machine) -> None:
    host.write("/etc/systemd/system/broken.service", "[Service]\nType=oneshot\nExecStart=/usr/bin/false\n")
    host.run("systemctl daemon-reload")
    reply = call(host, "helper", "ExecuteTool", name="unit_restart", args=[], target_unit="broken.service")
    assert reply["error"] == TOOL1 + "ExecutionFailed"
    assert "failed" in reply["parameters"]["reason"]


@pytest.mark.parametrize(
    "unit",
    ["dbus.service", "systemd-journald.service", "systemd-logind.service", "systemd-udevd.service", "init.scope",
     "polkit.service", "routerd.service", "toold.socket", "dbus-org.freedesktop.login1.service"],
)  # fmt: skip
@pytest.mark.parametrize("user", ["helper", None])
def test_denied_units_are_denied_to_everybody(host: Machine, unit: str, user: str | None) -> None:
    for name in ("unit_restart", "unit_stop"):
        reply = call(host, user, "ExecuteTool", name=name, args=[], target_unit=unit)
        assert reply["error"] == TOOL1 + "PermissionDenied"


def test_an_alias_of_a_denied_unit_is_denied(host: Machine) -> None:
    host.run("ln -s /usr/lib/systemd/system/systemd-logind.service /etc/systemd/system/innocent.service")
    host.run("systemctl daemon-reload")
    reply = call(host, "helper", "ExecuteTool", name="unit_stop", args=[], target_unit="innocent.service")
    assert reply["error"] == TOOL1 + "PermissionDenied"
    assert host.property("systemd-logind.service", "ActiveState") == "active"


def test_an_instance_of_an_alias_is_denied(host: Machine) -> None:
    host.run("ln -s /usr/lib/systemd/system/getty@.service /etc/systemd/system/innocent@.service")
    host.run("systemctl daemon-reload")
    reply = call(host, "helper", "ExecuteTool", name="unit_stop", args=[], target_unit="innocent@tty9.service")
    assert reply["error"] == TOOL1 + "PermissionDenied"


def test_what_a_denied_unit_needs_is_not_stopped(host: Machine) -> None:
    """By way of another unit, too: what is bound to it would stop with it."""
    sleeps = "[Service]\nExecStart=/usr/bin/sleep infinity\n"
    host.write("/etc/systemd/system/base.service", sleeps)
    host.write(
        "/etc/systemd/system/middle.service", f"[Unit]\nRequires=base.service\nAfter=base.service\n{sleeps}"
    )
    host.write("/etc/systemd/system/sshd-like.service", f"[Unit]\nBindsTo=middle.service\n{sleeps}")
    host.run("systemctl daemon-reload && systemctl start sshd-like.service")
    for user in ("helper", None):
        for name in ("unit_stop", "unit_restart"):
            reply = call(host, user, "ExecuteTool", name=name, args=[], target_unit="base.service")
            assert reply["error"] == TOOL1 + "PermissionDenied"
            assert "sshd-like.service" in reply["parameters"]["reason"]
    assert host.property("base.service", "ActiveState") == "active"
    host.run("systemctl stop sshd-like.service middle.service base.service")
    host.run("rm /etc/systemd/system/{base,middle,sshd-like}.service && systemctl daemon-reload")


@pytest.mark.parametrize("unit", ["ssh.service", "systemd-sentry.service", "modeld.service"])
def test_polkit_denies_them_to_toold_itself(host: Machine, unit: str) -> None:
    manager = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"
    for method in ("RestartUnit", "StopUnit"):
        done = host.run(f"busctl call {manager} {method} ss {unit} replace", user="syntrop-tool", check=False)
        assert done.returncode != 0


@pytest.mark.parametrize("name", ["unit_restart", "unit_stop", "revert_dropin", "clear_cache", "journal_slice"])
def test_strangers_are_refused(host: Machine, name: str) -> None:
    reply = call(host, "nobody", "ExecuteTool", name=name, args=[], target_unit="victim.service")
    assert reply["error"] == "org.varlink.service.PermissionDenied"
    assert host.property("victim.service", "ActiveState") == "active"


def test_what_is_ill_typed_is_refused(host: Machine) -> None:
    for args, unit in (
        (["x", "y", "z"], "victim.service"),
        ([], "victim.service; reboot"),
        (["../../x"], "a.service"),
    ):
        reply = call(host, "helper", "ExecuteTool", name="revert_dropin", args=args, target_unit=unit)
        assert reply["error"] == TOOL1 + "InvalidParameter"
    assert call(host, "helper", "ExecuteTool", name="sh", args=["-c", "id"])["error"] == TOOL1 + "ToolNotFound"


def test_looking_is_for_everybody(host: Machine) -> None:
    status = execute(host, "unit_status", unit="victim.service", user="nobody")["result"]["stdout"]
    assert "ActiveState=active" in status.splitlines()
    verified = execute(host, "unit_verify", unit="victim.service", user="nobody")["result"]
    assert (verified["exit_code"], verified["stderr"]) == (0, "")
    assert "tcp" in execute(host, "net_listeners", user="nobody")["result"]["stdout"]
    assert "overlay" in execute(host, "disk_usage", "/", user="nobody")["result"]["stdout"]


def test_a_mistake_in_a_unit_is_found(host: Machine) -> None:
    host.write("/etc/systemd/system/typo.service", "[Service]\nExecStart=/usr/bin/no-such-program\nTpye=x\n")
    host.run("systemctl daemon-reload")
    result = execute(host, "unit_verify", unit="typo.service")["result"]
    assert "Tpye" in result["stderr"]
    assert "no-such-program" in result["stderr"]


def test_the_journal_is_for_operators(host: Machine) -> None:
    host.run("systemd-run --wait --unit=speaker echo a line of the journal && journalctl --sync")
    shown = execute(host, "journal_slice", "50", unit="speaker.service")["result"]["stdout"]
    assert "a line of the journal" in shown
    assert execute(host, "coredump_info")["result"]["exit_code"] in (0, 1)


def test_stopping_is_undone_by_starting(host: Machine) -> None:
    stopped = execute(host, "unit_stop", unit="victim.service")
    assert host.property("victim.service", "ActiveState") == "inactive"
    roll_back(host, stopped["rollback_id"])
    assert host.property("victim.service", "ActiveState") == "active"


def test_a_property_is_set_and_set_back(host: Machine) -> None:
    before = host.property("victim.service", "CPUWeight")
    done = execute(host, "set_unit_property", "CPUWeight", "77", unit="victim.service")
    assert host.property("victim.service", "CPUWeight") == "77"
    back = roll_back(host, done["rollback_id"])
    assert host.property("victim.service", "CPUWeight") == before
    again = roll_back(host, back)
    assert host.property("victim.service", "CPUWeight") == "77"
    roll_back(host, again)
    assert host.property("victim.service", "CPUWeight") == before


def test_a_limit_that_is_set_holds_over_a_reload_against_drop_ins_of_earlier_names(host: Machine) -> None:
    """By which systemd-sentry tells whether a limit can be given back without a file being touched."""
    folder = "/etc/systemd/system/victim.service.d"
    before = host.property("victim.service", "MemoryMax")
    for name, wanted in (("10-limits.conf", 64 << 20), ("50-MemoryMay.conf", 8 << 20), ("limits.conf", 8 << 20)):
        host.write(f"{folder}/{name}", "[Service]\nMemoryMax=8M\n")
        host.run("systemctl daemon-reload")
        assert host.property("victim.service", "MemoryMax") == str(8 << 20)
        done = execute(host, "set_unit_property", "MemoryMax", "64M", unit="victim.service")
        assert host.property("victim.service", "MemoryMax") == str(64 << 20)
        assert host.property("victim.service", "NeedDaemonReload") == "no"
        host.run("systemctl daemon-reload")
        assert host.property("victim.service", "MemoryMax") == str(wanted), name
        roll_back(host, done["rollback_id"])
        assert host.property("victim.service", "MemoryMax") == str(8 << 20)
        assert not host.path("/run/systemd/system.control/victim.service.d/50-MemoryMax.conf").exists()
        host.path(f"{folder}/{name}").unlink()
    host.run("systemctl daemon-reload")
    assert host.property("victim.service", "MemoryMax") == before


def test_a_cache_is_emptied_and_filled_again(host: Machine) -> None:
    host.run("cd /var/cache/victim && mkdir -p a/b && echo one >a/b/one && echo two >two")
    host.run("cd /var/cache/victim && ln -s a/b link && chmod 700 a")
    listing = "cd /var/cache/victim && find . | sort | xargs stat -c '%n %F %a %U %s' && cat two a/b/one"
    before = host.run(listing).stdout
    done = execute(host, "clear_cache", unit="victim.service")
    assert host.run("ls -A /var/cache/victim").stdout == ""
    roll_back(host, done["rollback_id"])
    # A folder's own size is the file system's business.
    assert host.run(listing).stdout == before


def test_a_file_is_restored(host: Machine) -> None:
    host.write("/etc/victim.conf", "bad\n")
    host.write("/etc/victim.conf.dpkg-old", "good\n")
    host.run("chmod 640 /etc/victim.conf && chown root:syntrop /etc/victim.conf")
    done = execute(host, "restore_file", "/etc/victim.conf", "victim.conf.dpkg-old")
    assert host.path("/etc/victim.conf").read_text() == "good\n"
    assert host.run("stat -c '%a %G' /etc/victim.conf").stdout == "640 syntrop\n"
    roll_back(host, done["rollback_id"])
    assert host.path("/etc/victim.conf").read_text() == "bad\n"


@pytest.mark.parametrize("path", ["/etc/shadow", "/etc/sudoers", "/usr/bin/env", "/etc/ssh/sshd_config"])
def test_files_that_decide_who_gets_in_stay(host: Machine, path: str) -> None:
    reply = call(host, "helper", "ExecuteTool", name="restore_file", args=[path])
    assert reply["error"] == TOOL1 + "PermissionDenied"


CUT_SHORT = """
import glob, os, sys
sys.path[:0] = glob.glob("/usr/lib/syntrop/lib/python3.*/site-packages")
from syntrop.toold import image, undo
root, path = sys.argv[1:]
record = undo.Record(tool="revert_dropin", summary="cut short", reload=True, target_unit="victim.service", steps=[
    undo.Step(path, image.capture(path), image.Image())])
undo.prepare(root, record)
undo.carry_out(record)
os.system(f"chown -R syntrop-tool: {root}/rollbacks")
"""


def test_what_a_crash_cuts_short_is_rolled_back_at_the_next_start(host: Machine) -> None:
    host.write(DROP_IN, "[Service]\nEnvironment=A=b\n")
    before = state_of(host, DROP_IN)
    host.run("systemctl stop toold.service")
    host.run_python(CUT_SHORT, STATE, DROP_IN)
    assert not host.path(DROP_IN).exists()
    call(host, "nobody", "ListTools")  # whoever wakes it
    # All of it comes after the reply, and the record goes and the journal is told after the manager has reloaded.
    host.wait_property("victim.service", "DropInPaths", DROP_IN)
    assert state_of(host, DROP_IN) == before
    host.run(f"while ls {STATE}/rollbacks | grep -q open; do sleep 0.1; done")
    told = "journalctl -o cat MESSAGE_ID=0c52b0aa11ae40828bf448ebcc3d4662"
    host.run(f"until {told} | grep -q 'cut short'; do sleep 0.1; done")
    execute(host, "revert_dropin", unit="victim.service")


CHECK_CHAIN = """
import glob, sys
sys.path[:0] = glob.glob("/usr/lib/syntrop/lib/python3.*/site-packages")
from syntrop.toold import audit
for entry in audit.read(sys.argv[1]):
    print(entry["event"], entry["hash"], entry.get("uid"), *(entry.get("layers") or ()))
"""


def test_the_audit_log_holds_and_the_journal_has_its_hashes(host: Machine) -> None:
    execute(host, "daemon_reload")
    entries = host.run_python(CHECK_CHAIN, STATE).splitlines()
    assert {line.split()[0] for line in entries} >= {"begin", "change", "look", "refusal", "rollback", "recovery"}
    host.run("journalctl --sync")
    hashes = host.run("journalctl -o json --output-fields=AUDIT_HASH SYSLOG_IDENTIFIER=toold").stdout
    last = next(line for line in reversed(entries) if line.startswith("change "))
    assert last.split()[1] in hashes
    explained = host.run("journalctl -x -n 200 SYSLOG_IDENTIFIER=toold").stdout
    assert "syntropctl rollback" in explained


def test_commands_run_in_control_groups_of_their_own(host: Machine) -> None:
    execute(host, "disk_usage")
    group = "/sys/fs/cgroup/syntrop.slice/toold.service"
    assert "tools" in host.run(f"ls {group}").stdout
    assert host.run(f"cat {group}/tools/cgroup.procs").stdout == ""
    assert host.run(f"cat {group}/daemon/cgroup.procs").stdout.strip() == host.property("toold.service", "MainPID")
    assert "no control group" not in host.journal("toold.service")


BOMB = """
import glob, sys
sys.path[:0] = glob.glob("/usr/lib/syntrop/lib/python3.*/site-packages")
from syntrop.toold import confinement, runner
bomb = '''
import os, select
for count in range(400):
    try:
        if os.fork() == 0:
            os.close(1), os.close(2)
            select.select([], [], [], 60)
    except OSError:
        break
print(count)
'''
for layers in (confinement.ALL_LAYERS, confinement.ALL_LAYERS & ~confinement.LIMITS):
    command = runner.Command([sys.argv[1], "-I", "-S", "-c", bomb], timeout=30, processes=True, reads=("/usr",))
    outcome = runner.run(command, layers=layers)
    print(outcome.stdout.decode().strip() or outcome.stderr.decode())
"""


def test_a_fork_bomb_is_held_by_the_limit(host: Machine) -> None:
    """Of a tool that may fork at all; root is not counted, so this is done as the account that toold runs as."""
    told = host.run_python(BOMB, "/usr/bin/python3.13", python="/usr/lib/syntrop/bin/python3", user="syntrop-tool")
    held, free = map(int, told.split())
    assert held < 128
    assert free == 399
    # All of it is killed, and then gone when the machine has come to that.
    host.run("while pgrep -u syntrop-tool -f select.select; do sleep 0.1; done")


ORPHAN = """
import glob, os, select, signal, sys, time
sys.path[:0] = glob.glob("/usr/lib/syntrop/lib/python3.*/site-packages")
from syntrop.common import cgroup
from syntrop.toold import confinement, runner
orphan = '''
import os, select
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1), os.close(2)
        select.select([], [], [], 600)
    os._exit(0)
'''
own = cgroup.of_pid(0)

def others():
    folders = [own.folder, *(entry.path for entry in os.scandir(own.folder) if entry.is_dir())]
    pids = {pid for one in folders for pid in map(int, open(os.path.join(one, "cgroup.procs")))}
    return pids - {os.getpid()}

argv = ["/usr/bin/python3.13", "-I", "-S", "-c", orphan]
command = runner.Command(argv, timeout=60, processes=True, reads=("/usr",))
without_filter = confinement.ALL_LAYERS & ~confinement.SECCOMP  # which has no setsid(2)
for groups, expected in ((own.folder, 0), (None, 1)):
    # Nor with a namespace of processes, whose end is the end of all in it.
    runner.run(command, layers=without_filter, groups=groups, namespaces="never")
    deadline = time.monotonic() + 30
    while len(left := others()) > expected and time.monotonic() < deadline:  # killed, and gone in a moment
        time.sleep(0.02)
    print(len(left))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
"""


def test_a_control_group_finds_what_has_left_its_session(host: Machine) -> None:
    """Without the filter a command can leave its session: the group gets it all the same."""
    run = "systemd-run --quiet --wait --pipe --property=Delegate=yes /usr/lib/syntrop/bin/python3 -I -"
    assert host.run(run, input=ORPHAN).stdout.split() == ["0", "1"]


KINDS = ["user", "mnt", "pid", "net", "ipc", "uts"]
SPY = """
import glob, json, os, sys, time
kinds, program = json.loads(sys.argv[1]), sys.argv[2]
group = "/sys/fs/cgroup/syntrop.slice/toold.service"

def read(path):
    with open(path) as file:
        return file.read()

def spaces(pid):
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in kinds}

deadline = time.monotonic() + 60
print("looking", flush=True)
while time.monotonic() < deadline:
    time.sleep(0.001)
    for procs in glob.glob(f"{group}/tools/run-*/cgroup.procs"):
        try:
            for pid in map(int, read(procs).split()):
                if read(f"/proc/{pid}/comm").strip() == program:
                    [daemon] = map(int, read(f"{group}/daemon/cgroup.procs").split())
                    print(json.dumps({"tool": spaces(pid), "daemon": spaces(daemon), "host": spaces(1)}))
                    sys.exit()
        except OSError:
            continue
"""
COMMANDS = {
    "journalctl": ("journal_slice", "1000"),
    "systemd-analyze": ("unit_verify",),
    "df": ("disk_usage",),
}


def spied(machine: Machine, program: str) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Namespaces of a command while it runs, of toold and of PID 1; and which layers toold says that it had."""
    name, *args = COMMANDS.get(program, ("net_listeners",))
    unit = "victim.service" if name == "unit_verify" else None
    with machine.start_python(SPY, json.dumps(KINDS), program) as spy:
        assert spy.stdout is not None
        assert spy.stdout.readline() == "looking\n"
        while spy.poll() is None:  # one may be over before it was seen
            layers = execute(machine, name, *args, unit=unit)["result"]["sandbox"]
        return json.loads(spy.stdout.read()), layers


@pytest.mark.parametrize("program", COMMANDS)
def test_a_command_has_namespaces_of_its_own(host: Machine, program: str) -> None:
    """Under the unit as it is shipped, by what the kernel says of the command while it runs."""
    found, layers = spied(host, program)
    for kind in KINDS:
        assert found["tool"][kind] not in (found["daemon"][kind], found["host"][kind]), kind
    assert layers == [*KINDS, "cgroup"]
    told = host.run_python(CHECK_CHAIN, STATE).splitlines()[-1]
    assert told.endswith(" ".join(layers))


def test_without_namespaces_nothing_runs_unless_a_setting_lets_go_of_them(host: Machine) -> None:
    forbids = "/run/systemd/system/toold.service.d/forbids.conf"
    host.write(forbids, "[Service]\nRestrictNamespaces=\nRestrictNamespaces=yes\n")
    host.run("systemctl daemon-reload && systemctl restart toold.service")
    reply = call(host, "helper", "ExecuteTool", name="disk_usage", args=[])
    assert reply["error"] == TOOL1 + "ExecutionFailed"
    assert "no user namespace of its own" in reply["parameters"]["reason"]
    kept = host.path("/etc/syntrop/toold.toml").read_text()
    host.write("/etc/syntrop/toold.toml", f'{kept}[sandbox]\nnamespaces = "auto"\n')
    host.run("systemctl restart toold.service")
    found, layers = spied(host, "journalctl")
    assert found["tool"] == found["daemon"]
    assert layers == ["cgroup"]
    host.write("/etc/syntrop/toold.toml", kept)
    host.run(f"rm {forbids} && systemctl daemon-reload && systemctl restart toold.service")


def test_what_listens_on_the_machine_is_shown_to_who_has_no_network(host: Machine) -> None:
    """toold has none, and asks over the socket that the manager made; port 32768 is the suite's own."""
    assert host.property("toold.service", "PrivateNetwork") == "yes"
    assert host.property("toold-diag.socket", "SubState") == "running"
    shown = execute(host, "net_listeners", "tcp", user="nobody")["result"]
    assert shown.get("sandbox") is None  # nothing was run
    lines = {words[3]: words for line in shown["stdout"].splitlines() if (words := line.split())}
    for address in ("127.0.0.1:32768", "[::1]:32768"):
        assert lines[address][0] == "LISTEN", shown
        # The manager made it: in a group of the socket's unit where it has reason to, or in its own.
        assert lines[address][-1] in ("cgroup:/system.slice/routerd.socket", "cgroup:/init.scope")
    server = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); time.sleep(1000)"
    host.run(["systemd-run", "--unit=hears", "/usr/bin/python3", "-c", server])
    heard = "cgroup:/system.slice/hears.service"
    wait_for(lambda: heard in execute(host, "net_listeners")["result"]["stdout"], "who listens is told", host)
    host.run("systemctl stop hears.service")


def test_what_listens_is_told_to_several_at_once(host: Machine) -> None:
    """The kernel makes one list at a time for a socket."""
    host.run("for n in 1 2 3 4 5 6 7 8; do syntropctl run net_listeners tcp >/tmp/heard.$n & done; wait")
    for address in ("127.0.0.1:32768", "[::1]:32768"):
        assert host.run(["grep", "-cF", address, *(f"/tmp/heard.{n}" for n in range(1, 9))]).stdout == "".join(
            f"/tmp/heard.{n}:1\n" for n in range(1, 9)
        )


def test_without_its_socket_the_kernels_tables_are_read(host: Machine) -> None:
    """Port 32768 is found in either way; this one takes a command, in the sandbox."""
    host.run("systemctl stop toold.service && systemctl mask --runtime --now toold-diag.socket")
    found, layers = spied(host, "ss")
    for kind in KINDS:
        assert found["tool"][kind] not in (found["daemon"][kind], found["host"][kind]), kind
    assert layers == [*KINDS, "cgroup"]
    shown = execute(host, "net_listeners", "tcp")["result"]["stdout"]
    assert "127.0.0.1:32768" in shown and "[::1]:32768" in shown
    host.run("systemctl stop toold.service && systemctl unmask --runtime toold-diag.socket")
    assert execute(host, "net_listeners")["result"].get("sandbox") is None


NETLINK = """
import glob, os, re, socket, sys
# The socket of sock_diag(7) that PID 1 holds: its number there, its address, and the bytes that wait in it.
def sockets():
    rows = [line.split() for line in read("/proc/net/netlink").splitlines()[1:]]
    return {f"socket:[{row[9]}]": (int(row[2]), int(row[4])) for row in rows if row[1] == "4"}

def each(folder, look):
    for path in glob.glob(f"/proc/1/{folder}/*"):
        try:
            yield os.path.basename(path), look(path)
        except FileNotFoundError:  # closed since it was listed
            pass

def read(path):
    with open(path) as file:
        return file.read()

held = {target: number for number, target in each("fd", os.readlink)}
[name] = held.keys() & sockets().keys()
if sys.argv[1] == "send":
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as sender:
        sender.sendto(b"?", (sockets()[name][0], 0))
watched = [events for _, text in each("fdinfo", read) for events in re.findall(
    rf"^tfd: +{held[name]} events: +([0-9a-f]+)", text, re.M)]
print("watched" if any(int(text, 16) & 1 for text in watched) else "left alone", sockets()[name][1])
"""


def test_the_socket_starts_nobody_for_nothing(host: Machine) -> None:
    """toold leaves and stays away; a datagram of somebody else's wakes it once, and is thrown away with it."""

    def started_at() -> str:
        return host.property("toold.service", "ExecMainStartTimestampMonotonic")

    set_idle(host, "toold", 600.0)  # awake until it is told otherwise, however long a look takes
    host.run("systemctl restart toold.service")
    execute(host, "net_listeners")
    assert host.run_python(NETLINK, "look") == "left alone 0\n"
    set_idle(host, "toold", 1.0)
    host.run("systemctl restart toold.service")
    host.wait_property("toold.service", "ActiveState", "inactive")
    started = started_at()
    host.wait_property("toold-diag.socket", "SubState", "listening")
    assert host.run_python(NETLINK, "look") == "watched 0\n"
    assert started_at() == started

    host.run_python(NETLINK, "send")
    wait_for(lambda: started_at() != started, "a datagram wakes it", host)
    host.wait_property("toold.service", "ActiveState", "inactive")
    again = started_at()
    host.wait_property("toold-diag.socket", "SubState", "listening")
    # Nothing is left in it that could start toold once more.
    assert host.run_python(NETLINK, "look") == "watched 0\n"
    assert started_at() == again

    # One that comes while it is awake is passed over by the next question.
    set_idle(host, "toold", 600.0)
    execute(host, "net_listeners")
    seen, waiting = host.run_python(NETLINK, "send").rsplit(" ", 1)
    assert seen == "left alone" and int(waiting) > 0
    assert "127.0.0.1:32768" in execute(host, "net_listeners")["result"]["stdout"]
    host.run("rm /run/systemd/system/toold.service.d/idle.conf && systemctl daemon-reload")


def test_syntropctl(host: Machine) -> None:
    host.write(DROP_IN, BAD)
    host.run("systemctl daemon-reload")
    shown = host.run(["syntropctl", "run", "revert_dropin", "--unit", "victim.service", "bad.conf"], user="helper")
    rollback_id = next(word for word in shown.stdout.split() if word.startswith("rb-"))
    assert rollback_id in host.run(["syntropctl", "history"], user="helper").stdout
    host.run(["syntropctl", "rollback", rollback_id], user="helper")
    assert host.path(DROP_IN).read_text() == BAD
    refused = host.run(["syntropctl", "run", "unit_stop", "--unit", "dbus.service"], user="helper", check=False)
    assert refused.returncode == 1
    assert "never changed" in refused.stderr
    execute(host, "revert_dropin", "bad.conf", unit="victim.service")


def test_too_many_changes_are_refused(host: Machine) -> None:
    host.write("/etc/syntrop/toold.toml", "[rates]\nchanges_per_minute = 1000\nchanges_per_unit_per_minute = 3\n")
    host.write("/etc/systemd/system/other.service", "[Service]\nExecStart=/usr/bin/sleep infinity\n")
    host.run("systemctl daemon-reload; systemctl restart toold.service")
    for _ in range(3):
        execute(host, "unit_reset_failed", unit="other.service")
    # Leaving and coming back does not make it forget.
    host.run("systemctl restart toold.service")
    reply = call(host, "helper", "ExecuteTool", name="unit_reset_failed", args=[], target_unit="other.service")
    assert reply["error"] == TOOL1 + "PermissionDenied"
    assert "try again" in reply["parameters"]["reason"]
