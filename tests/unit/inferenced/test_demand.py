# SPDX-License-Identifier: Apache-2.0
"""What a call of the engine needs, at which tier, and what ends it; and models that the arbiter was told of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common import loop
from syntrop.common.http import chat
from syntrop.common.http.errors import HttpError
from syntrop.common.http.routing import Routes
from syntrop.common.varlink.errors import VarlinkError
from syntrop.inferenced import demand, loan, registry, serve_http
from syntrop.inferenced.tier import Tier

MODEL = {"context_window": 4096, "cache_token_bytes": 1 << 20}
SLICES = {"user.slice": Tier.INTERACTIVE, "system.slice": Tier.BATCH, "rescue.slice": Tier.EMERGENCY}


def request(most: int | None = None, n: int = 1) -> chat.GenerateRequest:
    asked = chat.GenerateRequest("m", [chat.Message("user", "x")])
    asked.max_tokens, asked.n = most, n
    return asked


@pytest.mark.parametrize(
    ("requests", "prompt", "tokens"),
    [
        ([request(10)], 5, 15),
        ([request()], 5, 5 + demand.ANSWER),
        ([request(1 << 30)], 5, 4096),  # no sequence is longer than the context
        ([request(10)], None, 4096),
        ([request(10, n=3)], 5, 3 * 15),
        ([request(10, n=100)], 5, 4 * 15),  # four run at a time
        ([request(10, n=2)] * 3, 5, 6 * 15),
    ],
)
def test_a_generation_needs_the_cache_of_its_sequences(
    requests: list[chat.GenerateRequest], prompt: int | None, tokens: int
) -> None:
    assert demand.of_generation(MODEL, requests, prompt) == tokens << 20


def test_nothing_is_no_answer() -> None:
    encoder = {"context_window": 512}
    assert demand.of_generation(encoder, [request(10)], 5) == demand.LEAST
    assert demand.of_embedding(encoder, chat.EmbedRequest("m", ["x" * 1000])) == demand.LEAST
    assert demand.of_embedding(MODEL, chat.EmbedRequest("m", ["ü" * 10, "x"])) == 21 << 20
    assert demand.of_embedding(MODEL, chat.EmbedRequest("m", [[1, 2, 3], [4]])) == 4 << 20


def test_short_texts_are_in_memory_together_and_long_ones_alone() -> None:
    model = {"context_window": 8192, "cache_token_bytes": 1 << 20}
    for lengths, tokens in (([500] * 9, 512), ([100] * 3, 300), ([600] * 9, 600), ([9000, 1], 8192)):
        request = chat.EmbedRequest("m", [[1] * length for length in lengths])
        assert demand.of_embedding(model, request) == tokens << 20


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 31), st.integers(1, 128), st.integers(1, 8))
def test_a_generation_never_needs_more_than_its_sequences_can_be_long(
    prompt: int, most: int, n: int, prompts: int
) -> None:
    size = demand.of_generation(MODEL, [request(most, n)] * prompts, prompt)
    assert demand.LEAST <= size <= 16 * 4096 << 20


@pytest.mark.parametrize(
    ("group", "lowered", "tier"),
    [
        ("/user.slice/user-1000.slice/session-1.scope", None, Tier.INTERACTIVE),
        ("/user.slice/user-1000.slice/session-1.scope", Tier.BATCH, Tier.BATCH),
        ("/system.slice/cron.service", None, Tier.BATCH),
        ("/system.slice/cron.service", Tier.INTERACTIVE, Tier.BATCH),  # never up
        ("/rescue.slice/a.service", None, Tier.INTERACTIVE),  # no emergencies by HTTP
        ("/machine.slice/a.scope", None, Tier.INTERACTIVE),
        (None, None, Tier.INTERACTIVE),
    ],
)
def test_the_tier_of_a_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None, lowered: Tier | None, tier: Tier
) -> None:
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path))
    monkeypatch.setenv("SYNTROP_SYS_ROOT", str(tmp_path))
    hierarchy = tmp_path / "fs" / "cgroup"
    hierarchy.mkdir(parents=True)
    (hierarchy / "cgroup.controllers").write_text("memory\n")
    if group is not None:
        (tmp_path / "77").mkdir()
        (tmp_path / "77" / "cgroup").write_text(f"0::{group}\n")
    assert loan.tier_of(77, SLICES, lowered) is tier


def event(kind: str, deadline: int | None = None, reason: str | None = None) -> dict[str, Any]:
    return {"lease_id": "l-1", "kind": kind, "memory_bytes": 0, "deadline_ms": deadline, "reason": reason}


def test_what_ends_a_call() -> None:
    assert loan.why_lost(event("yield_requested", 250, "wanted")) == "wanted"
    assert loan.why_lost(event("yield_requested", 0)) and loan.why_lost(event("frozen"))
    assert loan.why_lost(event("revoked", reason="plane gpu is gone")) == "plane gpu is gone"
    assert loan.why_lost(event("released")) and loan.why_lost(event("expired"))
    for kind in ("granted", "yield_requested", "spared", "thawed", "resized", "prefetch_allowed"):
        assert not loan.why_lost(event(kind, reason="85 % is in use")), kind


def test_the_header_that_lowers() -> None:
    assert serve_http.asked_for(None) is None
    assert serve_http.asked_for("Batch") is Tier.BATCH
    assert serve_http.asked_for("Interactive") is Tier.INTERACTIVE
    for wrong in ("EmergencyTriage", "batch", "", "x" * 1000):
        with pytest.raises(HttpError) as caught:
            serve_http.asked_for(wrong)
        assert caught.value.status == 400 and len(caught.value.message) < 200


def test_refusals_by_http() -> None:
    holder = {"allocated_memory": 7, "priority": "Batch", "client_unit": None, "client_pid": 42}
    name = "io.syntrop.Inference1."
    error = serve_http.refusal(
        VarlinkError(name + "ResourceExhaustion", plane="cpu0", requested=9, available=3, holders=[holder])
    )
    headers = dict(error.headers)
    assert (error.status, error.code, headers["retry-after"]) == (503, "resource_exhausted", "1")
    assert [headers[f"x-syntrop-{one}"] for one in ("plane", "requested", "available")] == ["cpu0", "9", "3"]
    assert "9 bytes of cpu0, of which 3" in error.message and "7 by 42 at Batch" in error.message
    assert serve_http.refusal(VarlinkError(name + "PressureCritical", level="critical")).status == 503
    quota = VarlinkError(name + "QuotaExceeded", resource="leases", requested=5, limit=4)
    assert serve_http.refusal(quota).status == 429
    assert serve_http.refusal(VarlinkError(name + "InvalidParameter", parameter="pid")).status == 403
    final = serve_http.refusal(VarlinkError(name + "PlaneNotFound", plane="gpu9"))
    assert final.status == 503 and dict(final.headers)["x-should-retry"] == "false"


def test_routes_are_found_and_refused() -> None:
    find = Routes(serve_http.ROUTES).find
    assert find("POST", "/v1/chat/completions") == ("chat", "")
    assert find("GET", "/v1/models/org/name%3A1") == ("model", "org/name:1")
    for method, path, status in (
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/health", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/models/%ff", 400),
    ):
        with pytest.raises(HttpError) as caught:
            find(method, path)
        assert caught.value.status == status


# --- the registry ------------------------------------------------------------------------------------------------


def test_models_are_kept_over_restarts(tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    models = registry.Registry(folder)
    models.add("a", "gguf", "/a", 1)
    models.add("b", "safetensors", "/b", 2)
    models.place("a", "cpu0")
    models.add("a", "gguf", "/new", 3)  # told anew; it stays where it is
    again = registry.Registry(folder)
    assert again.models == models.models
    assert again.placement("a") == "cpu0" and again.placement("b") is None and again.placement("c") is None
    assert again.models["a"] == {
        "id": "a",
        "format": "gguf",
        "path": "/new",
        "estimated_memory": 3,
        "placement": "cpu0",
    }
    again.place("a", "")
    assert registry.Registry(folder).placement("a") is None
    with pytest.raises(KeyError):
        again.place("c", "cpu0")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"models": [1]}', '{"models": [{"id": "a"}]}', "\xff"])
def test_a_file_that_makes_no_sense_is_no_end(tmp_path: Path, content: str) -> None:
    (tmp_path / "models.json").write_bytes(content.encode("latin-1"))
    models = registry.Registry(str(tmp_path))
    assert models.models == {}
    models.add("a", "gguf", "/a", 1)
    assert list(registry.Registry(str(tmp_path)).models) == ["a"]


def test_models_are_bounded_and_what_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MODELS_MAX", 2)
    models = registry.Registry(str(tmp_path))
    models.add("a", "gguf", "/a", 1)
    models.add("b", "gguf", "/b", 1)
    with pytest.raises(registry.Full):
        models.add("c", "gguf", "/c", 1)
    models.add("b", "gguf", "/b", 2)
    os.rename(tmp_path / "models.json", tmp_path / "gone")
    (tmp_path / "models.json").mkdir()
    with pytest.raises(OSError):
        models.place("a", "cpu0")
    assert models.placement("a") is None


def test_changes_come_one_after_the_other(tmp_path: Path) -> None:
    models = registry.Registry(str(tmp_path))

    async def many() -> None:
        tasks = [loop.spawn(models.change(models.add, f"m{i}", "gguf", "/m", i), "add") for i in range(20)]
        for task in tasks:
            await task

    loop.run(many())
    assert len(registry.Registry(str(tmp_path)).models) == 20
