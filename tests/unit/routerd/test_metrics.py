# SPDX-License-Identifier: Apache-2.0
"""The text of /metrics, read back by Prometheus' own parser."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from syntrop.common.psi import Line, Pressure
from syntrop.routerd.config import ProviderConfig
from syntrop.routerd.fleet import Member
from syntrop.routerd.metrics import Histogram, Metrics


def member(id: str) -> Member:
    config = ProviderConfig({"id": id, "kind": "openai", "base_url": "http://x"}, [], "")
    return Member(config, None, None, lambda *_: None)  # type: ignore[arg-type, return-value]


def rendered(metrics: Metrics, *members: Member) -> dict[str, Any]:
    line = Line(25.0, 0, 0, 0)
    text = metrics.render(
        version='1."2\\', uptime=3.5, active=2, rss=2**24, members=members, now=0.0,
        pressure={"memory": Pressure(line, None), "io": Pressure(line, line)}, shedding=True,
    )  # fmt: skip
    families = {
        family.name.removeprefix("syntrop_router_"): family for family in text_string_to_metric_families(text)
    }
    assert all(family.documentation and family.type != "unknown" for family in families.values())
    return families


def value(family: Any, name: str = "", **labels: str) -> float:
    (found,) = [
        sample.value
        for sample in family.samples
        if sample.labels == labels and sample.name.endswith(name or family.name.rpartition("_")[2])
    ]
    return float(found)


def test_an_empty_daemon() -> None:
    families = rendered(Metrics())
    assert value(families["uptime_seconds"]) == 3.5 and value(families["requests_active"]) == 2
    assert families["info"].samples[0].labels == {"version": '1."2\\'}
    assert value(families["first_token_seconds"], "_count") == 0


def test_what_was_counted() -> None:
    metrics = Metrics()
    metrics.ended("chat", 200, 0.2)
    metrics.ended("chat", 200, 0.7)
    metrics.ended("none", 404, 0.001)
    metrics.answered("local", 'a"\\\n:1', 7, 3)
    metrics.answered("local", 'a"\\\n:1', 1, 1)
    sick = member("sick")
    sick.health.breaker._opened = 0.0
    families = rendered(metrics, member("well"), sick)
    requests = families["requests"]
    assert value(requests, "_total", route="chat", status="200") == 2
    assert value(requests, "_total", route="none", status="404") == 1
    assert value(families["prompt_tokens"], "_total", provider="local", model='a"\\\n:1') == 8
    assert value(families["completion_tokens"], "_total", provider="local", model='a"\\\n:1') == 4
    assert value(families["provider_healthy"], provider="well") == 1
    assert value(families["provider_healthy"], provider="sick") == 0
    assert value(families["provider_breaker"], provider="sick", state="open") == 1
    assert value(families["provider_breaker"], provider="sick", state="closed") == 0
    assert value(families["pressure_stalled_ratio"], "_ratio", resource="memory", kind="some") == 0.25
    assert value(families["shedding"]) == 1
    assert value(families["request_seconds"], "_count") == 3


def test_histograms_count_up() -> None:
    metrics = Metrics()
    metrics.first = Histogram((0.1, 1.0))
    for seconds, times in ((0.1, 1), (0.5, 3), (9.0, 2)):
        metrics.first.observe(seconds, times)
    family = rendered(metrics)["first_token_seconds"]
    assert [value(family, "_bucket", le=bound) for bound in ("0.1", "1", "+Inf")] == [1, 4, 6]
    assert value(family, "_count") == 6 and value(family, "_sum") == pytest.approx(19.6)


def test_models_are_bounded() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.answered("cloud", f"model-{number}", 1, 1)
    assert len(metrics.prompt) == 257 and metrics.prompt["cloud", ""] == 744
