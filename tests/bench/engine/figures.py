# SPDX-License-Identifier: Apache-2.0
"""What is promised of the engine beside llama.cpp, and the rows that show it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from table import Row

PREFILL, DECODE = 512, 128
STREAMS, STREAM_TOKENS = 8, 64
PROGRAMS = ("LLAMA_BENCH", "LLAMA_COMPLETION", "LLAMA_SERVER")  # of the peer

Taken = Mapping[str, Sequence[float]]
"""Values by `key`; a subject that was not there has none."""


@dataclass(frozen=True)
class Model:
    """Bars are ratios to the peer's median."""

    title: str
    prefill: float
    decode: float
    first: float
    streams: float = 2.0
    resident: float = 0.8


MODELS = {
    "smollm2": Model("SmolLM2-135M Q4_1", prefill=4.0, decode=1.5, first=0.8),
    "gemma3": Model("Gemma-3-270M Q4_K_M", prefill=3.0, decode=1.4, first=0.5),
    "qwen2": Model("Qwen2.5-0.5B Q4", prefill=4.0, decode=1.8, first=0.8),
}


def key(model: str, threads: int, who: str, what: str) -> str:
    return f"{model}.{threads}.{who}.{what}"


def rows(name: str, threads: Sequence[int], taken: Taken, unit: str) -> list[Row]:
    """Of one model with each number of threads. `unit` is what the multiply peak was measured on."""
    return [row for count in threads for row in _rows(name, count, taken, unit)]


def _rows(name: str, threads: int, taken: Taken, unit: str) -> list[Row]:
    model = MODELS[name]
    plural = f"{threads} thread{'s' * (threads > 1)}"

    def row(label: str, measure: str, what: str, bar: tuple[str, float] | None) -> Row:
        peer = taken.get(key(name, threads, "peer", what))
        return Row(f"{label}, {plural}", measure, taken[key(name, threads, "ours", what)], peer, bar)

    def middle(what: str) -> float:
        return statistics.median(taken[key(name, threads, "ours", what)])

    multiplies = f"{100 * middle('multiply_share'):.0f} % of {middle('peak') / 1e9:.0f} G {unit} multiplies/s"
    reading = f"{100 * middle('read_share'):.0f} % of {middle('bandwidth') / 1e9:.0f} GB/s"
    return [
        row(f"prefill {PREFILL} ({multiplies})", "tokens/s", "prefill", ("x>=", model.prefill)),
        row(f"decode {DECODE} ({reading})", "tokens/s", "decode", ("x>=", model.decode)),
        row(f"{STREAMS} streams together", "tokens/s", "streams", ("x>=", model.streams)),
        row("process start → first token", "ms", "first", ("x<=", model.first)),
        row(
            "resident, beside the peer with the model's whole context", "MiB", "resident", ("x<=", model.resident)
        ),
        row("resident, beside the peer with a context of 1,024", "MiB", "lean", None),
        Row(f"loading alone, {plural}", "ms", taken[key(name, threads, "ours", "load")]),
    ]


def head(name: str, rounds: int) -> str:
    return f"{MODELS[name].title}, {rounds} × fresh processes, interleaved; beside it llama.cpp, same file"
