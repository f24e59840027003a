# SPDX-License-Identifier: Apache-2.0
"""What routerd costs, beside LiteLLM's proxy and a call straight to who answers, in one run.

The same upstream stands behind all three and answers at once with bytes that are made once (see
`tests/integration/upstream/fast.py`), so that nothing but the way is measured: by a provider of kind `openai`, and
by the local engine's Varlink. Rounds visit every subject in turn, so that whatever else the machine does meets all
of them alike. What is *added* is the time of a call less the time of the straight call of the same round.

  LITELLM   path of LiteLLM's `litellm`, installed with its proxy: the peer

`make bench ARGS=router` prints the table; here, `--json` prints the rows with every value.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "integration" / "upstream"))

from clients import STREAM_END, VARLINK_END, Caller, Streams, rate
from place import (
    CHAT,
    FAR,
    LOCAL,
    Place,
    descriptors,
    hang_up,
    http,
    prompt,
    requests,
    resident,
    settled,
)
from subjects import LiteLLM, cpu, interpreter, varlink

Row = dict[str, Any]
"""what, unit, values; where there are: peer (values), bar (as `table.Bar`)."""

KINDS = {FAR: "openai", LOCAL: "runtimed"}
TOKENS, PAUSE = 50, 2_000  # of a paced stream; microseconds
SLICE = 3.0  # seconds of full load


def row(what: str, unit: str, values: list[float], peer: list[float] | None = None, bar: Any = None) -> Row:
    return {"what": what, "unit": unit, "values": values, "peer": peer or None, "bar": bar}


def rounds_of(subjects: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call; the first rounds are not counted."""
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds + 20):
        for name, call in subjects.items():
            value = call() * 1e3
            if turn >= 20:
                taken[name].append(value)
    return taken


def less(values: list[float], straight: list[float]) -> list[float]:
    return [one - other for one, other in zip(values, straight, strict=True)]


def last(values: list[float]) -> list[float]:
    """The 99th percentile."""
    return [statistics.quantiles(values, n=100)[98]] if values else []


def latency(place: Place, peer: LiteLLM | None, rounds: int) -> Iterator[Row]:
    callers = {
        "straight": Caller(place.upstream, http({"model": LOCAL, "messages": prompt()})),
        "engine": Caller(place.engine, varlink(), VARLINK_END),
        FAR: Caller(place.address, http({"model": FAR, "messages": prompt()})),
        LOCAL: Caller(place.address, http({"model": LOCAL, "messages": prompt()})),
    }
    taken = rounds_of(dict(callers), rounds)
    other: list[float] = []
    if peer is not None:
        # It takes so long that fewer rounds must do, each with a straight call of its own.
        mine = {"straight": callers["straight"], "peer": Caller(peer.address, callers[FAR].request)}
        beside = rounds_of(dict(mine), max(100, rounds // 10))
        other = less(beside["peer"], beside["straight"])
    yield row("1 token, straight over HTTP", "ms", taken["straight"])
    yield row("1 token, straight over Varlink", "ms", taken["engine"])
    for model, base, theirs in ((FAR, "straight", other), (LOCAL, "engine", [])):
        added = less(taken[model], taken[base])
        yield row(f"added, {KINDS[model]}", "ms", added, theirs, ("<=", 0.6))
        yield row(f"added, {KINDS[model]}, 99 of 100 within", "ms", last(added), last(theirs), ("<=", 2.0))
    for caller in callers.values():
        caller.close()


def pieces(place: Place, peer: LiteLLM | None, rounds: int) -> Iterator[Row]:
    """Of streams with a token every 2 ms: from its sending to its reception."""

    def stream(address: Any, model: str) -> Caller:
        body = {"model": model, "messages": prompt(TOKENS, PAUSE), "stream": True}
        return Caller(address, http(body), STREAM_END)

    subjects = {
        "straight": stream(place.upstream, LOCAL),
        "engine": Caller(place.engine, varlink(TOKENS, PAUSE), VARLINK_END),
        FAR: stream(place.address, FAR),
        LOCAL: stream(place.address, LOCAL),
    }
    if peer is not None:
        subjects["peer"] = stream(peer.address, FAR)
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds + 2):
        for name, caller in subjects.items():
            delays = caller.delays()
            assert len(delays) == TOKENS, (name, len(delays))
            if turn >= 2:
                taken[name] += delays
    yield row("a stream's token, straight over HTTP", "µs", taken["straight"])
    yield row("a stream's token, straight over Varlink", "µs", taken["engine"])
    theirs = less(taken["peer"], taken["straight"]) if peer else []
    yield row("added to each, openai", "µs", less(taken[FAR], taken["straight"]), theirs, ("<=", 200.0))
    yield row("added to each, runtimed", "µs", less(taken[LOCAL], taken["engine"]), None, ("<=", 200.0))
    for caller in subjects.values():
        caller.close()


def load(place: Place, peer: LiteLLM | None, slices: int) -> Iterator[Row]:
    """With 8 clients that keep their connections and wait for nothing."""
    subjects = {"straight": (place.upstream[1], LOCAL, 0), FAR: (place.address[1], FAR, place.pid),
                LOCAL: (place.address[1], LOCAL, place.pid)}  # fmt: skip
    if peer is not None:
        subjects["peer"] = (peer.address[1], FAR, peer.pid)
    rates: dict[str, list[float]] = {name: [] for name in subjects}
    costs: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(slices):
        for name, (port, model, pid) in subjects.items():
            before = cpu(pid) if pid else 0.0
            per_second, count = rate(port, model, SLICE)
            rates[name].append(per_second)
            if pid:
                costs[name].append((cpu(pid) - before) / count * 1e6)
    theirs = rates.get("peer"), costs.get("peer")
    yield row("requests a second, 8 clients, straight", "1/s", rates["straight"])
    for model in (FAR, LOCAL):
        also = theirs if model == FAR else (None, None)
        yield row(f"requests a second, 8 clients, {KINDS[model]}", "1/s", rates[model], also[0], (">=", 2500.0))
        yield row(f"processor time of a request, {KINDS[model]}", "µs", costs[model], also[1])


def many(place: Place, count: int) -> Iterator[Row]:
    """So many streams at once, each with 20 tokens in 10 s."""
    for model in (FAR, LOCAL):
        streams = Streams(place.address, model, count, 20, 0.5)
        most = open_ = 0.0
        while streams.read(0.25):
            most = max(most, resident(place.pid))
            open_ = max(open_, place.get("/health")["active_requests"])
        yield row(f"most streams open at once, {KINDS[model]}", "", [open_], None, (">=", float(count)))
        yield row("resident then", "MiB", [most], None, ("<=", 96.0))
        yield row("tokens lost or astray", "", [float(streams.astray())], None, ("<=", 0.0))


def flat(place: Place, count: int, leaves: int) -> Iterator[Row]:
    """Whether anything stays behind: in a fresh process that has been warmed with a tenth of it all."""
    place.restart()
    sizes = []
    for share in (10, 1):
        for model in (FAR, LOCAL):
            requests(place.address[1], model, count // share // 2)
        for turn in range(leaves // share):
            hang_up(place.address, turn)
        settled(lambda: place.at_rest)
        sizes.append((resident(place.pid), descriptors(place.pid)))
    (before, fds_before), (after, fds_after) = sizes
    what = f"{count:,} requests and {leaves:,} hang-ups"
    yield row(f"resident before {what}", "MiB", [before])
    yield row("grown by them", "MiB", [after - before], None, ("<=", 2.0))
    yield row("descriptors that stayed", "", [float(fds_after - fds_before)], None, ("<=", 4.0))


def measure(options: argparse.Namespace, python: str) -> Iterator[Row]:
    with ExitStack() as stack:
        place = Place(python=python)
        stack.callback(place.close)
        place.get("/health")
        yield row("resident after the start", "MiB", [resident(place.pid)], None, ("<=", 32.0))
        for model in (FAR, LOCAL):
            assert place.router.request("POST", CHAT, {"model": model, "messages": prompt()})[0] == 200
        yield row("resident after a request of either kind", "MiB", [resident(place.pid)], None, ("<=", 32.0))
        peer = None
        if program := os.environ.get("LITELLM"):
            peer = LiteLLM(program, place.upstream_port)
            stack.callback(peer.close)
        yield from latency(place, peer, options.rounds)
        yield from pieces(place, peer, max(3, options.rounds // 50))
        yield from load(place, peer, options.slices)
        if options.streams:
            yield from many(place, options.streams)
        if options.requests:
            yield from flat(place, options.requests, options.hang_ups)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--slices", type=int, default=5, help="times 3 s of full load for each subject")
    parser.add_argument("--streams", type=int, default=1000, help="0: this part is left out")
    parser.add_argument("--requests", type=int, default=200_000, help="0: this part is left out")
    parser.add_argument("--hang-ups", type=int, default=10_000)
    parser.add_argument("--python", default=interpreter(), help="what routerd runs by; usually the machine's own")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, with every value")
    options = parser.parse_args()
    rows = []
    for one in measure(options, options.python):
        rows.append(one)
        peer = f"   beside it {statistics.median(one['peer']):.4g}" if one["peer"] else ""
        text = f"{one['what']:60} {statistics.median(one['values']):10.4g} {one['unit']}{peer}"
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps({"python": options.python, "rows": rows}))


if __name__ == "__main__":
    main()
