# SPDX-License-Identifier: Apache-2.0
"""Who should answer a request: a score for each provider and model, with the arithmetic in words. Pure.

score = weight × (wL × speed + wC × cost + wK × capability) + affinity - penalties, each part from 0 to 100:

  speed       60 / (1 + latency / 150 ms) + 40 × min(tokens a second / 200, 1)
  cost        100 when free, else 100 / (1 + 2000 × the estimated price in US dollars)
  capability  for a hard request 95 from a hard model and 35 from another; for a fast one 95 and 55; else 75
  affinity    AFFINITY × the share of the prompt that the provider has probably cached

Equal scores go by the order of the configuration, so the same numbers always give the same order.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FAST, HARD, AUTO = "fast", "hard", "auto"
WEIGHTS = {  # latency, cost, capability
    FAST: (0.60, 0.30, 0.10),
    HARD: (0.15, 0.15, 0.70),
    AUTO: (0.40, 0.25, 0.35),
}
LATENCY, SPEED = 0.150, 200.0  # seconds and tokens a second at which a half of the points is earned, and all
AFFINITY = 15.0
PER_FAILURE, UNHEALTHY = 15.0, 50.0
PRESSURE = {"elevated": 25.0, "critical": 80.0}  # against what runs on this machine
PRESSURE_FROM, PRESSURE_SLOPE = 30.0, 0.5  # percent of memory stall
LONG_CONTEXT = 64_000  # a model with more tokens than this counts as a hard one where nothing else is said


class Ask:
    """What a request needs. `model` None: any. `needs`: abilities, such as tools, embeddings, logprobs. `room`:
    tokens that the context must have beside the prompt; usually those of the output, by which the price goes.
    `context`: tokens that it must have in any case, or 0."""

    __slots__ = ("context", "local", "model", "needs", "output_tokens", "prompt_tokens", "room", "tier")

    def __init__(
        self,
        model: str | None = None,
        tier: str = AUTO,
        *,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        room: int | None = None,
        context: int = 0,
        needs: Iterable[str] = (),
        local: bool = False,
    ) -> None:
        self.model = model
        self.context = context
        self.tier = tier
        self.room = output_tokens if room is None else room
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.needs = frozenset(needs)
        self.local = local


class Candidate:
    """A model at a provider. Prices in US dollars a token; `context` in tokens, None where nobody said."""

    __slots__ = (
        "abilities",
        "context",
        "enabled",
        "input_price",
        "local",
        "model",
        "output_price",
        "provider",
        "tier",
        "weight",
    )

    def __init__(
        self,
        provider: str,
        model: str,
        *,
        local: bool,
        tier: str | None = None,
        context: int | None = None,
        input_price: float = 0.0,
        output_price: float = 0.0,
        weight: float = 1.0,
        abilities: Iterable[str] = (),
        enabled: bool = True,
    ) -> None:
        self.provider = provider
        self.model = model
        self.local = local
        self.tier = tier or (HARD if context is not None and context > LONG_CONTEXT else FAST)
        self.context = context
        self.input_price = input_price
        self.output_price = output_price
        self.weight = weight
        self.abilities = frozenset(abilities)
        self.enabled = enabled

    def price(self, ask: Ask) -> float:
        return ask.prompt_tokens * self.input_price + ask.output_tokens * self.output_price


class Observed:
    """How a candidate does. `latency`: seconds to the first token; `speed`: tokens a second; `prompt_tokens`: the
    prompt counted by the model itself, None where only an estimate is to be had; `cached`: share of the prompt."""

    __slots__ = ("cached", "failures", "healthy", "latency", "open_for", "prompt_tokens", "speed")

    def __init__(
        self,
        *,
        latency: float = 0.050,
        speed: float = 30.0,
        failures: int = 0,
        healthy: bool = True,
        open_for: float = 0.0,
        prompt_tokens: int | None = None,
        cached: float = 0.0,
    ) -> None:
        self.latency = latency
        self.speed = speed
        self.failures = failures
        self.healthy = healthy
        self.open_for = open_for  # seconds for which its breaker lets nothing through
        self.prompt_tokens = prompt_tokens
        self.cached = cached


class Host:
    """This machine. `shedding`: new work is to go elsewhere where it may."""

    __slots__ = ("level", "memory_some", "shedding")

    def __init__(self, level: str = "normal", memory_some: float = 0.0, *, shedding: bool = False) -> None:
        self.level = level
        self.memory_some = memory_some  # percent
        self.shedding = shedding


class Verdict:
    """A candidate's score, or why it is none. The fields are those of Router1's ScoredCandidateInfo."""

    __slots__ = ("candidate", "capability", "cost", "demoted", "price", "reason", "refusal", "speed", "total")

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.total = self.speed = self.cost = self.capability = self.price = 0.0
        self.demoted = False
        self.refusal: str | None = None
        self.reason = ""


def rank(
    ask: Ask,
    field: Iterable[tuple[Candidate, Observed]],
    host: Host,
    *,
    slowest: float = 0.0,
    weights: Mapping[str, tuple[float, float, float]] = WEIGHTS,
) -> tuple[list[Verdict], list[Verdict]]:
    """(those that can answer, the best first; those that cannot, each with its reason).

    `slowest`: tokens a second below which nobody is asked; `weights`: of latency, cost and capability by tier.
    """
    fit, unfit = [], []
    for candidate, observed in field:
        verdict = Verdict(candidate)
        verdict.refusal = _refusal(ask, candidate, observed, slowest)
        if verdict.refusal is None:
            _score(verdict, ask, observed, host, weights[ask.tier])
            fit.append(verdict)
        else:
            verdict.reason = verdict.refusal
            unfit.append(verdict)
    if host.shedding and any(not one.candidate.local for one in fit):
        for one in fit:
            if one.candidate.local:
                one.demoted = True
                one.reason += f"; behind the others while memory stalls {host.memory_some:.1f} % of the time"
    fit.sort(key=lambda one: (one.demoted, -one.total))  # stable
    return fit, unfit


def _refusal(ask: Ask, candidate: Candidate, observed: Observed, slowest: float) -> str | None:
    if ask.model is not None and ask.model != candidate.model:
        return f"has {candidate.model}, not {ask.model}"
    if not candidate.enabled:
        return "disabled by the configuration"
    if ask.local and not candidate.local:
        return "not on this machine, which the request must not leave"
    if missing := sorted(ask.needs - candidate.abilities):
        return f"cannot do {', '.join(missing)}"
    prompt = ask.prompt_tokens if observed.prompt_tokens is None else observed.prompt_tokens
    if candidate.context is not None and prompt + ask.room > candidate.context:
        return f"context of {candidate.context} tokens, {prompt} + {ask.room} needed"
    if cramped(ask, candidate):
        return f"context of {candidate.context or 'unknown'} tokens, {ask.context} asked for"
    if observed.open_for > 0:
        if not observed.failures:
            return f"asked to be left alone for another {observed.open_for:.1f} s"
        return f"{observed.failures} failures in a row; left alone for another {observed.open_for:.1f} s"
    if observed.speed < slowest:
        return f"{observed.speed:.1f} tokens/s, {slowest:.1f} at least"
    return None


def cramped(ask: Ask, candidate: Candidate) -> bool:
    """Whether a candidate has less context than is asked for, or nobody can tell; this machine's engine can."""
    if candidate.context is None:
        return bool(ask.context) and not candidate.local
    return candidate.context < ask.context


def _score(
    verdict: Verdict, ask: Ask, observed: Observed, host: Host, weights: tuple[float, float, float]
) -> None:
    candidate = verdict.candidate
    by_latency, by_cost, by_capability = weights
    verdict.price = candidate.price(ask)
    verdict.speed = 60 / (1 + observed.latency / LATENCY) + 40 * min(observed.speed / SPEED, 1.0)
    verdict.cost = 100 / (1 + 2000 * verdict.price)
    if ask.tier == AUTO:
        verdict.capability = 75.0
    elif ask.tier == candidate.tier:
        verdict.capability = 95.0
    else:
        verdict.capability = 35.0 if ask.tier == HARD else 55.0
    merit = candidate.weight * (
        by_latency * verdict.speed + by_cost * verdict.cost + by_capability * verdict.capability
    )
    sums = [
        f"{candidate.weight:g} × ({by_latency:g} × speed {verdict.speed:.1f}"
        f" + {by_cost:g} × cost {verdict.cost:.1f}"
        f" + {by_capability:g} × capability {verdict.capability:.1f})"
    ]
    total = merit
    for name, points in _adjustments(candidate, observed, host):
        total += points
        sums.append(f"{'+' if points > 0 else '-'} {abs(points):.1f} {name}")
    verdict.total = total
    verdict.reason = f"{total:.1f} = {' '.join(sums)}"


def _adjustments(candidate: Candidate, observed: Observed, host: Host) -> list[tuple[str, float]]:
    found = []
    if observed.cached > 0:
        found.append(("cached prefix", AFFINITY * observed.cached))
    if candidate.local:
        if host.level in PRESSURE:
            found.append((f"{host.level} pressure", -PRESSURE[host.level]))
        if host.memory_some > PRESSURE_FROM:
            found.append(("memory stalls", -PRESSURE_SLOPE * host.memory_some))
    if not observed.healthy:
        found.append(("unhealthy", -UNHEALTHY))
    if observed.failures:
        found.append((f"for {observed.failures} failures in a row", -PER_FAILURE * observed.failures))
    return found
