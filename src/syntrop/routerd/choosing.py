# SPDX-License-Identifier: Apache-2.0
"""Who is asked: the candidates of a request, with their scores, and those that are none, with the reason."""

from __future__ import annotations

from time import monotonic

from syntrop.common import loop
from syntrop.common.http import chat
from syntrop.routerd import asking, scoring
from syntrop.routerd.affinity import Affinity
from syntrop.routerd.attempts import NobodyAnswers
from syntrop.routerd.config import ABILITIES, ModelConfig
from syntrop.routerd.fleet import STALE, Fleet
from syntrop.routerd.observed import Observations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from syntrop.routerd.fleet import Member
    from syntrop.routerd.host import Pressed

    Parts = Callable[[], Iterable[str]]
    Field = list[tuple["Option", scoring.Observed]]

COUNTS_MAX = 3
COUNT_TIMEOUT = 10.0  # seconds
NEAR = 0.6  # share of a context from which an estimate of the prompt is not good enough
NEW = 1.0  # seconds: a list of models that is younger has every model there is


class Option(scoring.Candidate):
    """A candidate, with where it comes from. `counted`: tokens of the prompt, by the model itself, where it was
    `doubted` that an estimate will do."""

    __slots__ = ("counted", "doubted", "member", "offer")

    def __init__(self, member: Member, offer: ModelConfig) -> None:
        config = member.config
        super().__init__(
            config.id,
            offer.name,
            local=config.local,
            tier=offer.tier or config.tier,
            context=offer.context,
            input_price=offer.input_price,
            output_price=offer.output_price,
            weight=config.weight,
            abilities=offer.abilities,
            enabled=config.enabled,
        )
        self.member = member
        self.offer = offer
        self.counted: int | None = None
        self.doubted = False


class Choice:
    """The outcome: who can answer, best first, and who cannot, each with its reason. `name`: the model that was
    asked for; `unlisted`: providers whose models are not known, with the reason."""

    __slots__ = ("fit", "name", "unfit", "unlisted")

    def __init__(
        self,
        name: str | None,
        fit: list[scoring.Verdict],
        unfit: list[scoring.Verdict],
        unlisted: list[str],
    ) -> None:
        self.name = name
        self.fit = fit
        self.unfit = unfit
        self.unlisted = unlisted

    def reasons(self) -> str:
        found = [f"{one.candidate.provider}/{one.candidate.model}: {one.reason}" for one in self.unfit]
        return "; ".join([*found, *self.unlisted])

    def nobody(self, ask: scoring.Ask) -> chat.EngineError:
        """What the client is told where nobody fits: that the request itself is at fault, if it is."""
        found = [one.candidate for one in self.unfit if isinstance(one.candidate, Option)]
        found = [one for one in found if one.enabled]
        if self.name is not None and found and not self.unlisted:
            missing = [sorted(ask.needs - one.abilities) for one in found]
            if all(missing):
                reason = f"{self.name} cannot do {', '.join(missing[0])}"
                return chat.Unhonoured(asking.PARAMETERS[missing[0][0]], reason)
            if all(scoring.cramped(ask, one) for one in found):
                most = max((one.context for one in found if one.context is not None), default=None)
                known = "is not known" if most is None else f"has {most} tokens"
                return chat.Unhonoured("context", f"the context of {self.name} {known}")
            if all(one.counted is not None and one.context is not None for one in found):
                largest = max(found, key=lambda one: one.context or 0)
                if largest.counted and largest.context and largest.counted + ask.room > largest.context:
                    return chat.ContextExceeded(largest.counted, largest.context)
        now = monotonic()
        waits = [wait for one in found if (wait := one.member.health.open_for(now)) > 0]
        return NobodyAnswers(
            f"Nobody can answer this request: {self.reasons() or 'there is no provider with a model'}",
            retry_after=min(waits, default=None),
            final=not waits and not self.unlisted,
        )


class Chooser:
    """Ranks the members of a fleet by what is known of them."""

    def __init__(self, fleet: Fleet, pressed: Pressed, observations: Observations, affinity: Affinity) -> None:
        self._fleet = fleet
        self._pressed = pressed
        self._observations = observations
        self._affinity = affinity

    async def choose(
        self,
        ask: scoring.Ask,
        *,
        request: chat.GenerateRequest | None = None,
        parts: Parts | None = None,
        thorough: bool = False,
    ) -> Choice:
        """Rank the candidates. Raises ModelNotFound. `request` is for an exact count of its tokens, `parts` for
        what may be cached of it; `thorough`: no name is passed on to an engine unseen."""
        if self._fleet.has_remote:
            self._pressed.watch()
        if ask.model is not None:
            return await self._named(ask, ask.model, request, parts, thorough=thorough)
        await self._list(self._members)
        options = [option for member in self._members for option in _options(member)]
        fit, unfit = await self._counted(ask, options, request, parts)
        self._prefer_default(ask, fit)
        return Choice(None, fit, unfit, _unlisted(self._members))

    @property
    def _members(self) -> list[Member]:
        return list(self._fleet.members.values())

    @property
    def _slowest(self) -> float:
        assert self._fleet.config is not None
        return self._fleet.config.thresholds.slowest

    def _prefer_default(self, ask: scoring.Ask, fit: list[scoring.Verdict]) -> None:
        assert self._fleet.config is not None
        usual = self._fleet.config.defaults.get(ask.tier)
        if usual is not None:
            fit.sort(key=lambda one: one.candidate.model != usual)  # stable
            for one in fit:
                if one.candidate.model == usual:
                    one.reason += f"; the default model of {ask.tier} requests"

    async def _named(
        self,
        ask: scoring.Ask,
        name: str,
        request: chat.GenerateRequest | None,
        parts: Parts | None,
        *,
        thorough: bool,
    ) -> Choice:
        options = await self._options_of(name, thorough=thorough)
        if not options:
            unlisted = _unlisted(self._members)
            if unlisted:
                return Choice(name, [], [], unlisted)
            raise chat.ModelNotFound(name)
        # Alone it is asked in any case, and counts for itself.
        fit, unfit = await self._counted(ask, options, request if len(options) > 1 else None, parts)
        if not fit:
            # Too long by an estimate alone, or too slow: it is the one that was asked for. The model itself
            # counts exactly, and refuses what is too long.
            for option in options:
                if option.counted is None:
                    option.context = None
            fit, unfit = self._rank(ask, self._field(options, parts), slowest=0.0)
        return Choice(name, fit, unfit, [])

    async def _options_of(self, name: str, *, thorough: bool) -> list[Option]:
        usable = [member for member in self._members if member.usable]
        unknown = [member for member in usable if not member.config.models]
        if not thorough and len(unknown) == 1 and unknown[0].config.local:
            engine = unknown[0]
            if not any(member.find(name) for member in self._members if member is not engine):
                # Nobody else can have it: the engine itself says soonest whether it does.
                return [Option(engine, ModelConfig({"name": name}, ABILITIES))]
        await self._list(unknown)
        options = list(_having(self._members, name))
        if not options and unknown:
            await self._list(unknown, most=NEW)
            options = list(_having(self._members, name))
        return options or await self._by_digest(unknown, name)

    async def _by_digest(self, members: Iterable[Member], name: str) -> list[Option]:
        from syntrop.routerd import store

        local = [member for member in members if member.config.local]
        if not local or not name.startswith("sha256:"):
            return []
        try:
            await store.inspect(name)
        except chat.ModelNotFound:
            return []
        return [Option(member, ModelConfig({"name": name}, ABILITIES)) for member in local]

    def _rank(
        self, ask: scoring.Ask, field: Field, *, slowest: float
    ) -> tuple[list[scoring.Verdict], list[scoring.Verdict]]:
        assert self._fleet.config is not None
        name, ask.model = ask.model, None  # they all have it, if under a longer name
        try:
            return scoring.rank(
                ask, field, self._pressed.host(), slowest=slowest, weights=self._fleet.config.weights
            )
        finally:
            ask.model = name

    def _field(self, options: list[Option], parts: Parts | None) -> Field:
        now = monotonic()
        field: Field = []
        for option in options:
            health, offer = option.member.health, option.offer
            usual = (offer.latency, offer.speed)
            latency, speed = self._observations.of(option.provider, option.model, usual, now)
            cached = 0.0
            if parts is not None and len(options) > 1:
                cached = self._affinity.share(option.provider, option.model, parts())
            observed = scoring.Observed(
                latency=latency,
                speed=speed,
                failures=health.breaker.failures,
                healthy=health.healthy(now),
                open_for=health.open_for(now),
                prompt_tokens=option.counted,
                cached=cached,
            )
            field.append((option, observed))
        return field

    async def _counted(
        self,
        ask: scoring.Ask,
        options: list[Option],
        request: chat.GenerateRequest | None,
        parts: Parts | None,
    ) -> tuple[list[scoring.Verdict], list[scoring.Verdict]]:
        """Rank, and have the local engine count the prompt where an estimate is too near the limit of who would be
        asked to be trusted. It may have to load a model for it, so the others are not counted."""
        for _ in range(COUNTS_MAX):
            fit, unfit = self._rank(ask, self._field(options, parts), slowest=self._slowest)
            doubtful = None if request is None else _doubtful(ask, fit, unfit)
            if doubtful is None:
                return fit, unfit
            doubtful.doubted = True
            try:
                with loop.deadline(COUNT_TIMEOUT):
                    twin = asking.renamed(request, doubtful.offer.upstream)  # type: ignore[arg-type]
                    doubtful.counted = await doubtful.member.provider.count(twin)
            except (chat.EngineError, TimeoutError):
                pass  # the estimate must do; the engine itself counts again
        return self._rank(ask, self._field(options, parts), slowest=self._slowest)

    async def _list(self, members: Iterable[Member], *, most: float = STALE) -> None:
        waiting = [member.enlist(most=most) for member in members if member.due(most)]
        if waiting:
            await loop.gather(*waiting)

    async def refresh(self) -> None:
        """Have the lists of models be new."""
        await self._list(self._members, most=NEW)

    # --- what there is --------------------------------------------------------------------------------------

    async def models(self) -> list[tuple[str, str]]:
        """(name, provider) of every model that can be asked for, each name once. Raises EngineError when none is
        known because nobody could be asked."""
        await self.refresh()
        found: dict[str, str] = {}
        for member in self._members:
            if member.usable:
                for offer in member.offers:
                    found.setdefault(offer.name, member.id)
        unlisted = _unlisted(self._members)
        if not found and unlisted:
            raise chat.Unavailable("; ".join(unlisted))
        return list(found.items())

    async def find(self, name: str) -> tuple[str, str]:
        """(name, provider) of the model that a name means. Raises EngineError."""
        ask = scoring.Ask(name)
        choice = await self.choose(ask, thorough=True)
        if not (choice.fit or choice.unfit):
            raise choice.nobody(ask)
        best = (choice.fit or choice.unfit)[0].candidate
        return best.model, best.provider


def _doubtful(ask: scoring.Ask, fit: list[scoring.Verdict], unfit: list[scoring.Verdict]) -> Option | None:
    """Of whom to have the prompt counted: the first, or where there is none those who were refused."""
    for one in fit[:1] or unfit:
        option = one.candidate
        if not isinstance(option, Option) or not option.local or option.context is None:
            continue
        if not option.doubted and option.member.usable and ask.prompt_tokens + ask.room >= NEAR * option.context:
            return option
    return None


def _options(member: Member) -> Iterator[Option]:
    if member.usable or not member.config.enabled:
        for offer in member.offers:
            yield Option(member, offer)


def _having(members: Iterable[Member], name: str) -> Iterator[Option]:
    for member in members:
        if member.usable or not member.config.enabled:
            offer = member.find(name)
            if offer is not None:
                yield Option(member, offer)


def _unlisted(members: Iterable[Member]) -> list[str]:
    """Who might have more than is known, with the reason."""
    found = []
    for member in members:
        if not member.config.enabled:
            continue
        why = member.problem or (member.failure if not member.config.models else None)
        if why is not None:
            found.append(f"{member.id}: {why}")
    return found


def report(members: Iterable[Member]) -> list[dict[str, Any]]:
    """The providers as `Router1.ListProviders` tells them."""
    from syntrop.common import paths
    from syntrop.common.http.engine import RUNTIME

    now = monotonic()
    return [
        {
            "id": member.id,
            "name": member.config.name,
            "kind": member.config.kind,
            "base_url": member.config.base_url or paths.endpoint(RUNTIME),
            "tier": member.config.tier or scoring.FAST,
            "is_healthy": member.usable and member.health.healthy(now),
            "weight": float(member.config.weight),
            "models": [offer.name for offer in member.offers],
            "total_requests": member.health.requests,
            "total_errors": member.health.errors,
            "last_latency_ms": member.health.latency * 1000,
        }
        for member in members
    ]
