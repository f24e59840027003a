# SPDX-License-Identifier: Apache-2.0
"""The whole chain as users meet it: curl and the `openai` client, on every endpoint of the router."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from arbiter import Client, Refused, prepare, wait_for
from machine import Machine
from suite import CALL, IMPORT, MODEL, MODEL_FILE, TCP, set_idle

SOCKET = "/run/syntrop/router.sock"
CURL = {
    "ipv4": ["curl", "-sS", "-g", "--fail-with-body", "--max-time", "60"],
    "ipv6": ["curl", "-sS", "-g", "--fail-with-body", "--max-time", "60"],
    "unix": ["curl", "-sS", "-g", "--fail-with-body", "--max-time", "60", "--unix-socket", SOCKET],
}
BASE = {"ipv4": TCP[0], "ipv6": TCP[1], "unix": "http://localhost"}
each_way = pytest.mark.parametrize("way", ["ipv4", "ipv6", "unix"])

# Arguments: base URL, model, path of a Unix socket or "".
OPENAI = """
import sys, openai, httpx2
base, model, path = sys.argv[1:]
transport = httpx2.HTTPTransport(uds=path) if path else None
client = openai.OpenAI(base_url=base + "/v1", api_key="none", http_client=httpx2.Client(transport=transport))
ask = dict(model=model, messages=[{"role": "user", "content": "Say hello."}], temperature=0, max_tokens=12)
assert model in [entry.id for entry in client.models.list()]
whole = client.chat.completions.create(**ask)
assert whole.usage.completion_tokens <= 12
streamed, finish = "", None
for chunk in client.chat.completions.create(**ask, stream=True):
    streamed += chunk.choices[0].delta.content or ""
    finish = chunk.choices[0].finish_reason or finish
assert streamed == whole.choices[0].message.content, (streamed, whole)
assert finish == whole.choices[0].finish_reason
try:
    client.chat.completions.create(**{**ask, "model": "no-such-model"})
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error.code
else:
    sys.exit("an unknown model was accepted")
print(streamed)
"""

# Stop reading in the middle of a long stream, as a user who has seen enough; tells how long twenty pieces take.
HANG_UP = """
import sys, time, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
stream = client.chat.completions.create(
    model=sys.argv[2], stream=True, max_tokens=4000, temperature=0,
    messages=[{"role": "user", "content": "Write a long story about a dragon."}],
)
for number, chunk in enumerate(stream):
    if number == 3:
        begun = time.monotonic()
    if number == 23:
        print(time.monotonic() - begun)
        stream.close()
        break
"""


@pytest.fixture(scope="module")
def stocked(machine: Machine) -> Iterator[Machine]:
    """The machine with the starter model in its store."""
    machine.run(IMPORT)
    yield machine


def test_the_model_is_in_the_store(stocked: Machine) -> None:
    listed = json.loads(
        stocked.run("varlinkctl call -j /run/syntrop/io.syntrop.Model1 io.syntrop.Model1.List {}").stdout
    )
    digest = stocked.run(["sha256sum", MODEL_FILE]).stdout.split()[0]
    assert [(f"{entry['name']}:{entry['tag']}", entry["digest"]) for entry in listed["models"]] == [
        (MODEL, f"sha256:{digest}")
    ]


@each_way
def test_curl(stocked: Machine, way: str) -> None:
    health = json.loads(stocked.run([*CURL[way], BASE[way] + "/health"]).stdout)
    assert health["status"]
    models = json.loads(stocked.run([*CURL[way], BASE[way] + "/v1/models"]).stdout)
    assert [model["id"] for model in models["data"]] == [MODEL]
    ask = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 8,
        "stream": True,
    }
    body = ["-H", "content-type: application/json", "-d", json.dumps(ask)]
    told = stocked.run([*CURL[way], "-N", *body, BASE[way] + "/v1/chat/completions"]).stdout
    events = [event for event in told.split("\n\n") if event != ": ping"]  # sent where loading takes its time
    assert events[-2:] == ["data: [DONE]", ""]
    first = json.loads(events[0].removeprefix("data: "))
    assert first["choices"][0]["delta"]["role"] == "assistant"


@each_way
def test_the_openai_client(stocked: Machine, way: str) -> None:
    path = SOCKET if way == "unix" else ""
    text = stocked.run_python(OPENAI, BASE[way], MODEL, path, python="/opt/client/bin/python3")
    assert text.strip()


def test_syntropctl_asks(stocked: Machine) -> None:
    answer = stocked.run(["syntropctl", "ask", "--tokens", "12", "Say hello."], user="nobody").stdout
    assert answer.strip()


def test_the_supervisor_alone_is_urgent_and_what_it_has_kept_is_in_the_cache(stocked: Machine) -> None:
    candidates = [{"name": "a", "token": " yes"}, {"name": "b", "token": " no"}]
    how = {"model": MODEL, "prompt": "A text that stays the same. " * 4, "candidates": candidates}

    def decided(user: str, **more: object) -> dict[str, Any]:
        endpoint, method = "/run/syntrop/io.syntrop.Runtime1", "io.syntrop.Runtime1.Decide"
        answer: dict[str, Any] = json.loads(
            stocked.run_python(CALL, endpoint, method, json.dumps({**how, **more}), user=user)
        )
        return answer

    kept = stocked.path("/var/cache/syntrop/runtimed")
    urgent = {"priority": "EmergencyTriage", "keep_prompt": True}
    for user in ("root", "nobody", "inferenced"):
        assert decided(user, **urgent)["error"] == "org.varlink.service.PermissionDenied", user
    assert decided("nobody", keep_prompt=True)["parameters"]["parameter"] == "keep_prompt"
    told = decided("sentry", **urgent)
    assert told["parameters"]["result"]["winner"] in ("a", "b"), told
    assert [one.suffix for one in kept.iterdir()] == [".kv"]
    assert stocked.run("stat -c '%U %a' /var/cache/syntrop/runtimed").stdout == "syntrop-runtime 700\n"
    assert decided("root", keep_prompt=True) == told


def test_what_it_takes_is_leased_and_given_back(stocked: Machine) -> None:
    prepare(stocked)
    stocked.write("/etc/syntrop/runtimed.toml", "lease_wait_sec = 60.0\n")
    stocked.run("systemctl stop runtimed.service")
    stocked.run(["syntropctl", "ask", "--tokens", "2", "Say hello."], user="nobody")
    stocked.run("systemd-run --quiet --collect --unit=urgent.service sleep infinity")
    with Client(stocked) as client, Client(stocked, "sentry.sock") as sentry:
        [lease] = client.call("ListLeases")["leases"]
        assert str(lease["client_pid"]) == stocked.property("runtimed.service", "MainPID")
        wanted = {"priority": "EmergencyTriage", "plane": "cpu0", "unit": "urgent.service"}

        def gave_back() -> bool:
            """A little more is wanted than there is beside it, as far as one can know: others use memory too."""
            with pytest.raises(Refused) as refused:
                sentry.call("AcquireLease", memory_bytes=1 << 50, **wanted)
            size = refused.value.parameters["available"] - lease["allocated_memory"] + (32 << 20)
            try:
                urgent = sentry.call("AcquireLease", memory_bytes=size, **wanted)
            except Refused:
                return False
            sentry.call("ReleaseLease", lease_id=urgent["lease_id"])
            return "inferenced wants memory" in stocked.journal("runtimed.service")

        # The signal goes from one user's daemon to another's.
        wait_for(gave_back, "runtimed says that it gave memory back", stocked)
    stocked.run("systemctl stop urgent.service runtimed.service")
    for name in ("inferenced", "runtimed"):
        stocked.path(f"/etc/syntrop/{name}.toml").unlink()
    stocked.run("systemctl stop inferenced.service && systemctl start inferenced.socket inferenced-enclave.socket")


def test_a_hang_up_frees_the_engine_and_the_suite_falls_asleep(stocked: Machine) -> None:
    set_idle(stocked, "*", 1.0)
    stocked.run("systemctl stop routerd.service runtimed.service modeld.service")
    twenty = float(stocked.run_python(HANG_UP, TCP[0], MODEL, python="/opt/client/bin/python3"))
    # The 4,000 tokens would take longer than this, a quarter of their time where the machine is busy.
    for daemon in ("runtimed", "routerd", "modeld"):
        stocked.wait_property(f"{daemon}.service", "ActiveState", "inactive", timeout=max(10.0, 50 * twenty))
    assert stocked.run("systemctl --failed --no-legend").stdout == ""
