# SPDX-License-Identifier: Apache-2.0
"""The providers in force: each with its health, and with the models that it has, known for a while.

A new configuration keeps the providers that it does not change, with all that is known of them. One that is
replaced or gone takes no more requests, and is closed when the last of those under way has ended.
"""

from __future__ import annotations

from time import monotonic

from syntrop.common import journal, loop, paths
from syntrop.common.http import chat
from syntrop.routerd.config import ABILITIES, RUNTIMED, Config, ModelConfig, ProviderConfig
from syntrop.routerd.health import Health
from syntrop.routerd.store import Contexts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from syntrop.common.http.provider import Provider

    Create = Callable[[ProviderConfig, str | None], Provider]

FRESH = 30.0  # seconds for which a list of models is good
STALE = 300.0  # and for which it will do while a new one is fetched
RETRY = 5.0  # seconds between attempts to list the models of one that failed
LIST_TIMEOUT = 10.0
PROBE_TIMEOUT = 5.0
_MODELS_MAX = 4096


class Member:
    """One provider of the configuration."""

    def __init__(self, config: ProviderConfig, secret: str | None, problem: str | None, create: Create) -> None:
        self.config = config
        self.secret = secret
        self.problem = problem  # why it cannot be asked at all
        self.health = Health(guarded=not config.local)
        self.offers: list[ModelConfig] = config.models  # its models, as far as they are known
        self.failure: str | None = None  # why its models are not known
        self._create = create
        self._provider: Provider | None = None
        self._contexts = Contexts()
        self._listed: float | None = None  # when its models were, or should have been, listed
        self._listing: loop.Task[None] | None = None
        self._users = 0
        self._retired = False
        self._timer: loop.Timer | None = None
        self._probing: loop.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.config.id

    @property
    def usable(self) -> bool:
        """Whether requests may be sent there at all."""
        return not self._retired and self.config.enabled and self.problem is None

    @property
    def provider(self) -> Provider:
        """Made when it is first needed. Raises chat.Unavailable where it cannot be."""
        if self._provider is None:
            try:
                self._provider = self._create(self.config, self.secret)
            except ValueError as error:
                self.problem = str(error)
                raise chat.Unavailable(f"{self.id} cannot be asked: {error}.") from None
        return self._provider

    def set_timeout(self, seconds: float) -> None:
        """From the next request on."""
        if self._provider is not None:
            self._provider.timeout = seconds

    def same(self, config: ProviderConfig, secret: str | None) -> bool:
        return self.config.same(config) and self.secret == secret

    # --- use ------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """A request is under way here; `release` it after its end."""
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        self._close_unused()

    def retire(self) -> None:
        """No more requests: to be closed when the last has ended."""
        self._retired = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._listing, self._probing):
            if task is not None:
                task.cancel()
        self._close_unused()

    def _close_unused(self) -> None:
        if self._retired and not self._users and self._provider is not None:
            provider, self._provider = self._provider, None
            provider.close()

    # --- models ---------------------------------------------------------------------------------------------

    def due(self, most: float) -> bool:
        """Whether `enlist` has something to do."""
        if self.config.models or not self.usable:
            return False
        good = FRESH
        if self.failure is not None:  # here, who is not there says so at once
            good = 0.0 if self.config.local else RETRY
        return self._listed is None or monotonic() - self._listed > min(most, good)

    async def enlist(self, *, most: float = STALE) -> None:
        """Have `offers` be at most `most` seconds old; what is younger is good for `FRESH` seconds, and renewed
        behind the scenes then. Where that fails, `failure` says why, and nobody waits for the next attempts."""
        if not self.due(most):
            return
        age = None if self._listed is None else monotonic() - self._listed
        if self._listing is None or self._listing.done:
            self._listing = loop.spawn(self._list(), f"models of {self.id}")
        failing_elsewhere = self.failure is not None and not self.config.local
        if age is None or (not failing_elsewhere and (age > most or self.failure is not None)):
            try:
                await self._listing
            except loop.TaskCancelled:
                self.failure = "it is not configured any more"

    def forget_models(self) -> None:
        """Ask anew before the next request that must know them."""
        self._listed = None

    async def _list(self) -> None:
        self.hold()
        try:
            with loop.deadline(LIST_TIMEOUT):
                self.offers = await (self._stored() if self.config.local else self._served())
            self.failure = None
        except chat.EngineError as error:
            self.failure = error.message
        except TimeoutError:
            self.failure = f"its models were not listed within {LIST_TIMEOUT:g} s"
        finally:
            self._listed = monotonic()
            self.release()

    async def _stored(self) -> list[ModelConfig]:
        return [
            ModelConfig({"name": name, "max_context_tokens": context}, ABILITIES)
            for name, context in await self._contexts.listing()
        ]

    async def _served(self) -> list[ModelConfig]:
        names = await self.provider.models()
        return [ModelConfig({"name": name}) for name in dict.fromkeys(names[:_MODELS_MAX])]

    def find(self, name: str) -> ModelConfig | None:
        """The model that a name means here. On this machine a name without a tag is `latest`, or the only tag."""
        for one in self.offers:
            if one.name == name:
                return one
        if not self.config.local or ":" in name:
            return None
        tagged = [one for one in self.offers if one.name.startswith(name + ":")]
        for one in tagged:
            if one.name == f"{name}:latest":
                return one
        return tagged[0] if len(tagged) == 1 else None

    async def test(self, timeout: float) -> float:
        """Ask for a sign of life now; the seconds that it took. Raises EngineError and TimeoutError."""
        self.hold()
        try:
            with loop.deadline(timeout):
                return await self.provider.probe(timeout)
        finally:
            self.release()

    # --- signs of life --------------------------------------------------------------------------------------

    def watch(self) -> None:
        """After a failure: ask for a sign of life when the breaker allows it, as long as the daemon is awake."""
        if self._retired or not self.health.guarded or self.health.healthy(monotonic()):
            return
        if self._timer is None and (self._probing is None or self._probing.done):
            self._timer = loop.call_later(self.health.breaker.remaining(monotonic()), self._due)

    def _due(self) -> None:
        self._timer = None
        if not self._retired and self.health.breaker.enter(monotonic()):
            self._probing = loop.spawn(self._probe(), f"probe of {self.id}")
        elif not self._retired and not self.health.healthy(monotonic()):
            # A request is the probe now, and tells the outcome.
            self._timer = loop.call_later(1.0, self._due)

    async def _probe(self) -> None:
        alive = False
        try:
            await self.test(PROBE_TIMEOUT)
            alive = True
            journal.notice(f"{self.id} shows signs of life again")
        except (chat.EngineError, TimeoutError) as error:
            journal.info(f"{self.id} is still not well: {error}")
        except BaseException:
            self.health.breaker.abandoned()
            raise
        self.health.probed(alive, monotonic())
        self._probing = None
        self.watch()


class Fleet:
    """All members, in the order of the configuration."""

    def __init__(self, create: Create) -> None:
        self._create = create
        self.config: Config | None = None
        self.members: dict[str, Member] = {}

    def apply(self, config: Config) -> list[str]:
        """Put a configuration into force; the providers that are not what they were before."""
        before, self.members = self.members, {}
        for one in config.providers:
            secret, problem = _secret(one)
            old = before.get(one.id)
            if old is not None and old.same(one, secret):
                old.config = one
                old.forget_models()
                self.members[one.id] = before.pop(one.id)
            else:
                if problem is not None and one.enabled:
                    journal.warning(f"{one.where}: {one.id} cannot be asked: {problem}")
                self.members[one.id] = Member(one, secret, problem, self._create)
        self.config = config
        for old in before.values():
            old.retire()
        return list(before)

    def set_engine_timeout(self, seconds: float) -> None:
        """How long the local engine may be silent, where its configuration does not say."""
        for member in self.members.values():
            if member.config.local and not member.config.timed:
                member.set_timeout(seconds)

    def close(self) -> None:
        for member in self.members.values():
            member.retire()

    @property
    def has_remote(self) -> bool:
        return any(member.usable and not member.config.local for member in self.members.values())


def _secret(config: ProviderConfig) -> tuple[str | None, str | None]:
    """(the key, None), or (None, why there is none). Keys come as systemd credentials only."""
    if config.credential is None or not config.enabled:
        return None, None
    path = paths.credential(config.credential)
    missing = f"the credential {config.credential!r} was not passed to the daemon (LoadCredential= of its unit)"
    if path is None:
        return None, missing
    try:
        with open(path, encoding="ascii") as file:
            secret = file.read().strip()
    except FileNotFoundError:
        return None, missing
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        return None, f"the credential {config.credential!r} cannot be read: {why}"
    if not secret or not secret.isprintable():
        return None, f"the credential {config.credential!r} holds no key"
    return secret, None


def create(config: ProviderConfig, secret: str | None, *, engine_timeout: float) -> Provider:
    """The provider that a configuration describes, imported when it is first needed."""
    if config.kind == RUNTIMED:
        from syntrop.common.http.engine import Engine

        made: Any = Engine(id=config.id, timeout=config.timeout if config.timed else engine_timeout)
    else:
        from importlib import import_module

        made = import_module(f"syntrop.routerd.providers.{config.kind}").create(config, secret)
    provider: Provider = made
    return provider
