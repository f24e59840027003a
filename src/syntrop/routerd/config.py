# SPDX-License-Identifier: Apache-2.0
"""Who may answer, from `routerd.toml` and its drop-ins. Pure: texts in, one configuration out, or one reason.

    [thresholds]                     # what `Thresholds` holds
    psi_memory_threshold = 25

    [tiers.hard]                     # weights of the parts of a score, and who is asked where nobody is named
    capability_weight = 0.7
    default_model = "large"

    [[providers]]
    id = "cloud"
    kind = "openai"                  # runtimed, openai, anthropic
    base_url = "https://api.example.com/v1"
    credential = "cloud-key"         # name of a systemd credential; keys themselves are refused
    [[providers.models]]
    name = "large"

Files are read weakest first. A provider of the same id replaces the earlier one whole; other keys win one by one.
Anything wrong refuses everything, naming file and line: half a configuration is nobody's intent.
"""

from __future__ import annotations

import re

from syntrop.routerd import scoring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn

RUNTIMED, OPENAI, ANTHROPIC = KINDS = ("runtimed", "openai", "anthropic")
ABILITIES = ("embeddings", "logprobs", "reasoning", "tools")
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_CREDENTIAL = re.compile(r"[A-Za-z0-9._@-]{1,255}")


class ConfigError(Exception):
    """`file:line: what is wrong`"""


class ModelConfig:
    """A model at a provider. `upstream`: its name there. Prices in US dollars a token, latency in seconds."""

    __slots__ = (
        "abilities",
        "context",
        "input_price",
        "latency",
        "name",
        "output_price",
        "speed",
        "tier",
        "upstream",
    )

    def __init__(self, values: dict[str, Any], abilities: tuple[str, ...] = ("tools",)) -> None:
        self.name: str = values["name"]
        self.upstream: str = values.get("upstream", self.name)
        self.context: int | None = values.get("max_context_tokens")
        self.input_price: float = values.get("cost_per_input_token", 0.0)
        self.output_price: float = values.get("cost_per_output_token", 0.0)
        self.latency: float = values.get("avg_latency_ms", 50.0) / 1000
        self.speed: float = values.get("tokens_per_second", 30.0)
        self.tier: str | None = values.get("tier")
        self.abilities: tuple[str, ...] = tuple(values.get("abilities", abilities))


class ProviderConfig:
    """A provider. `models` empty: whatever it says that it has. `timeout`: seconds without a sign of an answer."""

    __slots__ = (
        "base_url",
        "credential",
        "enabled",
        "id",
        "kind",
        "models",
        "name",
        "tier",
        "timed",
        "timeout",
        "weight",
        "where",
    )

    def __init__(self, values: dict[str, Any], models: list[ModelConfig], where: str) -> None:
        self.id: str = values["id"]
        self.name: str = values.get("name", self.id)
        self.kind: str = values["kind"]
        self.base_url: str = values.get("base_url", "").rstrip("/")
        self.credential: str | None = values.get("credential")
        self.enabled: bool = values.get("enabled", True)
        self.weight: float = values.get("weight", 1.0)
        self.tier: str | None = values.get("tier")
        self.timeout: float = values.get("timeout_ms", 300_000) / 1000
        self.timed = "timeout_ms" in values  # else the local engine has the time that the settings give it
        self.models = models
        self.where = where

    @property
    def local(self) -> bool:
        return self.kind == RUNTIMED

    def same(self, other: ProviderConfig) -> bool:
        """Whether nothing of what it says differs; where it says so may."""
        return _values(self) == _values(other)


class Thresholds:
    """`max_latency`: seconds that a remote answer may take to begin before another is tried; `retries`: others
    that are tried; `slowest`: tokens a second below which nobody is asked; `shed`: percent of memory stall."""

    __slots__ = ("max_latency", "retries", "shed", "slowest")

    def __init__(self, values: dict[str, Any]) -> None:
        self.max_latency: float = values.get("max_latency_ms", 15_000) / 1000
        self.retries: int = values.get("max_retries", 2)
        self.slowest: float = values.get("min_tokens_per_second", 0.0)
        self.shed: float = values.get("psi_memory_threshold", 25.0)


class Config:
    """All of it. `weights`: latency, cost, capability by tier; `defaults`: model by tier."""

    __slots__ = ("defaults", "providers", "thresholds", "weights")

    def __init__(
        self,
        providers: list[ProviderConfig],
        thresholds: Thresholds,
        weights: dict[str, tuple[float, float, float]],
        defaults: dict[str, str],
    ) -> None:
        self.providers = providers
        self.thresholds = thresholds
        self.weights = weights
        self.defaults = defaults


def _values(one: ProviderConfig | ModelConfig) -> list[Any]:
    found = [getattr(one, name) for name in one.__slots__ if name not in ("models", "where")]
    return found + [_values(model) for model in getattr(one, "models", ())]


LOCAL = {"id": "local", "name": "Local engine", "kind": RUNTIMED}


def load(files: Iterable[tuple[str, str]]) -> Config:
    """The configuration of (path, text) pairs, the weakest first. Raises ConfigError.

    The local engine is there unless a provider of kind runtimed says otherwise.
    """
    providers: dict[str, ProviderConfig] = {}
    thresholds: dict[str, Any] = {}
    tiers: dict[str, dict[str, Any]] = {}
    for path, text in files:
        import tomllib  # most installations have no file

        try:
            document = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{path}: no valid TOML: {error}") from None
        reader = _Reader(path, text)
        thresholds |= reader.table(document.get("thresholds", {}), _THRESHOLDS, "thresholds")
        for name, table in reader.tables(document.get("tiers", {}), "tiers"):
            if name not in scoring.WEIGHTS:
                reader.fail(f"must be one of {', '.join(scoring.WEIGHTS)}, not {name!r}", f"tiers.{name}")
            tiers.setdefault(name, {}).update(reader.table(table, _TIER, f"tiers.{name}"))
        own: set[str] = set()
        for provider in reader.providers(document.get("providers", [])):
            if provider.id in own:
                raise ConfigError(f"{provider.where}: the id {provider.id!r} is taken in this file")
            own.add(provider.id)
            providers[provider.id] = provider
    if not any(provider.kind == RUNTIMED for provider in providers.values()):
        if "local" in providers:
            where = providers["local"].where
            raise ConfigError(f"{where}: the id 'local' is the local engine's; its kind is {RUNTIMED}")
        providers = {"local": ProviderConfig(LOCAL, [], ""), **providers}
    weights = {}
    for name, usual in scoring.WEIGHTS.items():
        given = tiers.get(name, {})
        keys = ("latency_weight", "cost_weight", "capability_weight")
        latency, cost, capability = (given.get(key, share) for key, share in zip(keys, usual, strict=True))
        weights[name] = (latency, cost, capability)
    defaults = {name: given["default_model"] for name, given in tiers.items() if "default_model" in given}
    return Config(list(providers.values()), Thresholds(thresholds), weights, defaults)


# --- one file ------------------------------------------------------------------------------------------------


def _text(value: object) -> str | None:
    return None if isinstance(value, str) and value and value.isprintable() else "must be a text"


def _flag(value: object) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _number(least: float, most: float, *, whole: bool = False) -> Callable[[object], str | None]:
    kind = "a whole number" if whole else "a number"

    def check(value: object) -> str | None:
        right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if right and least <= value <= most:  # type: ignore[operator]
            return None
        return f"must be {kind} from {least:g} to {most:g}"

    return check


def _one_of(*choices: str) -> Callable[[object], str | None]:
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def _matching(pattern: re.Pattern[str], words: str) -> Callable[[object], str | None]:
    return lambda value: None if isinstance(value, str) and pattern.fullmatch(value) else words


def _url(value: object) -> str | None:
    host = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?"
    found = re.fullmatch(rf"https?://{host}(/[^\s?#]*)?", value) if isinstance(value, str) else None
    if found is not None and 0 < int(found["port"] or 80) < 65536:
        return None
    return "must be an http or https URL, without user, query or fragment"


def _abilities(value: object) -> str | None:
    if isinstance(value, list) and all(one in ABILITIES for one in value):
        return None
    return f"must be a list of {', '.join(ABILITIES)}"


_TIERS = _one_of(scoring.FAST, scoring.HARD)
_SHARE = _number(0, 1)
_PRICE = _number(0, 1)
_THRESHOLDS = {
    "max_latency_ms": _number(1, 3_600_000),
    "max_retries": _number(0, 10, whole=True),
    "min_tokens_per_second": _number(0, 1e6),
    "psi_memory_threshold": _number(1, 100),
}
_TIER = {
    "name": _text,
    "latency_weight": _SHARE,
    "cost_weight": _SHARE,
    "capability_weight": _SHARE,
    "default_model": _text,
}
_PROVIDER = {
    "id": _matching(_ID, "must be lower-case letters, digits, '.', '_' and '-', 64 at most"),
    "name": _text,
    "kind": _one_of(*KINDS),
    "base_url": _url,
    "credential": _matching(_CREDENTIAL, "must be the name of a systemd credential"),
    "enabled": _flag,
    "weight": _number(0, 100),
    "tier": _TIERS,
    "timeout_ms": _number(1, 86_400_000),
    "models": lambda value: None,
}
_MODEL = {
    "name": _text,
    "upstream": _text,
    "max_context_tokens": _number(1, 2**40, whole=True),
    "cost_per_input_token": _PRICE,
    "cost_per_output_token": _PRICE,
    "avg_latency_ms": _number(0, 3_600_000),
    "tokens_per_second": _number(0, 1e6),
    "tier": _TIERS,
    "abilities": _abilities,
}


class _Reader:
    """Checks the tables of one file, and knows the lines that they are on."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()

    def fail(self, reason: str, header: str, nth: int = 0, key: str = "") -> NoReturn:
        what = f"{key} {reason}" if key else reason
        raise ConfigError(f"{self.where(header, nth, key)}: {what}")

    def where(self, header: str, nth: int = 0, key: str = "") -> str:
        """`file:line` of a key in the nth table of a name, or of the table where it is written in another way."""
        seen, start = -1, 0
        for number, line in enumerate(self._lines, 1):
            if found := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
                if seen == nth and start:
                    break
                if re.sub(r"[\s\"']", "", found[1]) == header:
                    seen += 1
                    start = number if seen == nth else 0
            elif start and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return f"{self._path}:{number}"
        return f"{self._path}:{start}" if start else self._path

    def tables(self, value: object, header: str) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            self.fail("must be a section", header, key=header)
        return list(value.items())

    def table(
        self, value: object, known: dict[str, Callable[[object], str | None]], header: str, nth: int = 0
    ) -> dict[str, Any]:
        """The values of a table, each checked."""
        if not isinstance(value, dict):
            self.fail("must be a table", header, nth)
        for key, one in value.items():
            if key == "api_key":
                self.fail("is not read from files; name a systemd credential by 'credential'", header, nth, key)
            if key not in known:
                self.fail(f"is not known here ({', '.join(known)} are)", header, nth, key)
            if reason := known[key](one):
                self.fail(f"{reason}, not {_shown(one)}", header, nth, key)
        return value

    def providers(self, value: object) -> list[ProviderConfig]:
        if not isinstance(value, list):
            self.fail("must be written as [[providers]]", "providers")
        found = []
        models_before = 0
        for nth, one in enumerate(value):
            table = self.table(one, _PROVIDER, "providers", nth)
            for key in ("id", "kind"):
                if key not in table:
                    self.fail(f"a provider needs {key!r}", "providers", nth)
            if table["kind"] == RUNTIMED:
                for key in ("base_url", "credential"):
                    if key in table:
                        self.fail("says nothing for the local engine", "providers", nth, key)
            elif "base_url" not in table:
                self.fail(f"a provider of kind {table['kind']} needs 'base_url'", "providers", nth)
            usual = ABILITIES if table["kind"] == RUNTIMED else ("tools",)
            models = self._models(table.get("models", []), nth, models_before, usual)
            models_before += len(models)
            found.append(ProviderConfig(table, models, self.where("providers", nth)))
        return found

    def _models(self, value: object, nth: int, before: int, usual: tuple[str, ...]) -> list[ModelConfig]:
        if not isinstance(value, list):
            self.fail("must be written as [[providers.models]]", "providers", nth, "models")
        found: list[ModelConfig] = []
        for index, one in enumerate(value):
            table = self.table(one, _MODEL, "providers.models", before + index)
            if "name" not in table:
                self.fail("a model needs 'name'", "providers.models", before + index)
            if any(table["name"] == other.name for other in found):
                self.fail("is taken in this provider", "providers.models", before + index, "name")
            found.append(ModelConfig(table, usual))
        return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
