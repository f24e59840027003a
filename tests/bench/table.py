# SPDX-License-Identifier: Apache-2.0
"""The one table of `make bench`: rows of measured values, each beside its peer and its bar. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Bar = tuple[str, float]
"""What is promised: ("<=", 60.0) of the median, ("x<=", 1.4) or ("x>=", 0.8) of the ratio to the peer's median."""


@dataclass(frozen=True)
class Row:
    what: str
    unit: str
    values: Sequence[float]
    peer: Sequence[float] | None = None
    bar: Bar | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def ratio(self) -> float | None:
        return self.median / statistics.median(self.peer) if self.peer else None

    @property
    def kept(self) -> bool | None:
        """None where nothing is promised, or what it is promised beside was not measured."""
        if self.bar is None:
            return None
        how, limit = self.bar
        value = self.ratio if how.startswith("x") else self.median
        if value is None:
            return None
        return value <= limit if how.endswith("<=") else value >= limit


def spread(values: Sequence[float]) -> str:
    """Median and the 10th to 90th percentile; a single value as it is."""
    median = statistics.median(values)
    digits = 0 if median >= 100 else 1 if median >= 10 else 2
    if len(values) < 3:
        return f"{median:.{digits}f}"
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return f"{median:.{digits}f} ({cuts[0]:.{digits}f} to {cuts[-1]:.{digits}f})"


def render(groups: Sequence[tuple[str, Sequence[Row]]]) -> str:
    """Markdown: a head for each group says how its rows were taken."""
    lines = [
        "| what | unit | median (10 % to 90 %) | beside it | ratio | bar | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for head, rows in groups:
        lines.append(f"| **{head}** | | | | | | |")
        for row in rows:
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            bar = "" if row.bar is None else f"{row.bar[0].replace('x', '× ')} {row.bar[1]:g}"
            word = {True: "kept", False: "MISSED", None: "" if row.bar is None else "no peer"}[row.kept]
            beside = "" if row.peer is None else spread(row.peer)
            lines.append(
                f"| {row.what} | {row.unit} | {spread(row.values)} | {beside} | {ratio} | {bar} | {word} |"
            )
    return "\n".join(lines) + "\n"
