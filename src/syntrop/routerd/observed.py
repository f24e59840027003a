# SPDX-License-Identifier: Apache-2.0
"""How fast those who answer have been: latency to the first event, and tokens a second. Pure.

Each is a moving average over turns. With time it fades back to what the configuration says, by half every
`half_life` seconds, so that one bad hour does not keep somebody from being asked, and seen to do better, for ever.
"""

from __future__ import annotations

WEIGHT = 0.3  # of the newest turn
HALF_LIFE = 300.0  # seconds


TYPE_CHECKING = False
if TYPE_CHECKING:
    Key = tuple[str, str]


class _Average:
    __slots__ = ("at", "value")

    def __init__(self, value: float, at: float) -> None:
        self.value = value
        self.at = at

    def now(self, usual: float, now: float, half_life: float) -> float:
        faded: float = 0.5 ** (max(0.0, now - self.at) / half_life)
        return usual + (self.value - usual) * faded


class Observations:
    """Averages by provider and model, of the `most` that were used last."""

    __slots__ = ("_half_life", "_latency", "_most", "_speed")

    def __init__(self, *, most: int = 1024, half_life: float = HALF_LIFE) -> None:
        self._most = most
        self._half_life = half_life
        self._latency: dict[Key, _Average] = {}
        self._speed: dict[Key, _Average] = {}

    def note(self, provider: str, model: str, latency: float, tokens: int, duration: float, now: float) -> None:
        """A turn: seconds to its first event, the tokens of its answer, and seconds to its end."""
        self._add(self._latency, (provider, model), latency, now)
        # The first token's time is the prompt's. Two tokens in no time tell nothing of speed.
        if tokens > 1 and duration > latency:
            self._add(self._speed, (provider, model), (tokens - 1) / (duration - latency), now)

    def of(self, provider: str, model: str, usual: tuple[float, float], now: float) -> tuple[float, float]:
        """(latency, tokens a second); `usual` are those that the configuration expects."""
        key = (provider, model)
        latency, speed = self._latency.get(key), self._speed.get(key)
        return (
            usual[0] if latency is None else latency.now(usual[0], now, self._half_life),
            usual[1] if speed is None else speed.now(usual[1], now, self._half_life),
        )

    def forget(self, provider: str) -> None:
        """It is not configured any more."""
        for averages in (self._latency, self._speed):
            for key in [key for key in averages if key[0] == provider]:
                del averages[key]

    def _add(self, averages: dict[Key, _Average], key: Key, value: float, now: float) -> None:
        before = averages.pop(key, None)
        if before is not None:
            value = before.value + WEIGHT * (value - before.value)
        averages[key] = _Average(value, now)
        if len(averages) > self._most:
            del averages[next(iter(averages))]
