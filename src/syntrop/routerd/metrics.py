# SPDX-License-Identifier: Apache-2.0
"""What is counted and timed, and the text in which Prometheus reads it (its exposition format 0.0.4). Pure.

Labels are taken from bounded sets only: routes, statuses, and models that have really answered.
"""

from __future__ import annotations

from bisect import bisect_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from syntrop.common.psi import Pressure
    from syntrop.routerd.fleet import Member

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "syntrop_router_"
_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_BETWEEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_DURATION = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_MODELS_MAX = 256


class Histogram:
    """Observations in buckets; `bounds` are their upper ends, in seconds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Metrics:
    """Of all requests since the daemon started."""

    __slots__ = ("between", "broken", "completion", "duration", "first", "prompt", "requests", "waiting")

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        self.prompt: dict[tuple[str, str], int] = {}
        self.completion: dict[tuple[str, str], int] = {}
        self.first = Histogram(_FIRST)
        self.between = Histogram(_BETWEEN)
        self.duration = Histogram(_DURATION)
        self.broken = 0  # streams that failed after they had begun
        self.waiting = 0  # requests of which nothing has been answered yet

    def ended(self, route: str, status: int, seconds: float) -> None:
        """A request with its status; 499 is a client that left."""
        key = (route, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        self.duration.observe(seconds)

    def answered(self, provider: str, model: str, prompt_tokens: int, completion_tokens: int) -> None:
        key = (provider, model)
        if key not in self.prompt and len(self.prompt) >= _MODELS_MAX:
            key = (provider, "")
        self.prompt[key] = self.prompt.get(key, 0) + prompt_tokens
        self.completion[key] = self.completion.get(key, 0) + completion_tokens

    def render(
        self,
        *,
        version: str,
        uptime: float,
        active: int,
        rss: int,
        members: Iterable[Member],
        pressure: Mapping[str, Pressure],
        shedding: bool,
        now: float,
    ) -> str:
        """All of it, with the state of the moment."""
        text = _Text()
        text.family("info", "gauge", "The version of the daemon.")
        text.sample("info", 1, version=version)
        text.single("uptime_seconds", "gauge", "Seconds since the daemon started.", uptime)
        text.single("resident_bytes", "gauge", "Resident memory of the daemon.", rss)
        text.family("requests_total", "counter", "Requests by route and status; 499 is a client that left.")
        for (route, status), count in sorted(self.requests.items()):
            text.sample("requests_total", count, route=route, status=str(status))
        text.single("requests_active", "gauge", "Requests being answered.", active)
        text.single("requests_waiting", "gauge", "Requests of which nothing is answered yet.", self.waiting)
        text.single("streams_broken_total", "counter", "Streams that failed after they had begun.", self.broken)
        for name, kind, tokens in (
            ("prompt_tokens_total", "Tokens of prompts, by who read them.", self.prompt),
            ("completion_tokens_total", "Tokens of answers, by who made them.", self.completion),
        ):
            text.family(name, "counter", kind)
            for (provider, model), count in sorted(tokens.items()):
                text.sample(name, count, provider=provider, model=model)
        text.histogram("first_token_seconds", "Time from the request to the first of its answer.", self.first)
        text.histogram("between_tokens_seconds", "Time between the pieces of an answer.", self.between)
        text.histogram("request_seconds", "Time from the request to the end of its answer.", self.duration)
        _providers(text, list(members), now)
        _pressure(text, pressure, shedding=shedding)
        return text.whole()


def _providers(text: _Text, members: list[Member], now: float) -> None:
    text.family("provider_healthy", "gauge", "Whether requests are sent there.")
    for one in members:
        text.sample("provider_healthy", int(one.usable and one.health.healthy(now)), provider=one.id)
    text.family("provider_breaker", "gauge", "State of the breaker: 1 for the one in force.")
    for one in members:
        for state in ("closed", "open", "half-open"):
            is_it = one.health.breaker.state(now) == state
            text.sample("provider_breaker", int(is_it), provider=one.id, state=state)
    text.family("provider_requests_total", "counter", "Requests sent there.")
    for one in members:
        text.sample("provider_requests_total", one.health.requests, provider=one.id)
    text.family("provider_errors_total", "counter", "Requests that failed there.")
    for one in members:
        text.sample("provider_errors_total", one.health.errors, provider=one.id)


def _pressure(text: _Text, pressure: Mapping[str, Pressure], *, shedding: bool) -> None:
    text.family("pressure_stalled_ratio", "gauge", "Share of the last 10 s in which tasks waited.")
    for resource, found in sorted(pressure.items()):
        text.sample("pressure_stalled_ratio", found.some.avg10 / 100, resource=resource, kind="some")
        if found.full is not None:
            text.sample("pressure_stalled_ratio", found.full.avg10 / 100, resource=resource, kind="full")
    text.single("shedding", "gauge", "Whether new work leaves this machine where it may.", int(shedding))


class _Text:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, help: str) -> None:
        self._lines += [f"# HELP {_PREFIX}{name} {help}", f"# TYPE {_PREFIX}{name} {kind}"]

    def sample(self, name: str, value: float, **labels: str) -> None:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        self._lines.append(f"{_PREFIX}{name}{{{inside}}} {_number(value)}" if inside else
                           f"{_PREFIX}{name} {_number(value)}")  # fmt: skip

    def single(self, name: str, kind: str, help: str, value: float) -> None:
        self.family(name, kind, help)
        self.sample(name, value)

    def histogram(self, name: str, help: str, histogram: Histogram) -> None:
        self.family(name, "histogram", help)
        total = 0
        for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
            total += count
            self.sample(f"{name}_bucket", total, le="+Inf" if bound is None else _number(bound))
        self.sample(f"{name}_sum", histogram.sum)
        self.sample(f"{name}_count", total)

    def whole(self) -> str:
        return "\n".join(self._lines) + "\n"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
