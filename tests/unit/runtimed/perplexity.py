# SPDX-License-Identifier: Apache-2.0
"""How surprised a model is by a fixed text, and the float32 twin's figures for the three real models.

`python tests/unit/runtimed/perplexity.py` makes `tests/data/perplexity.json` anew: it takes the twin
(`syntrop.runtimed.reference`, numpy in float32, all positions at once) some minutes and 3 GB.
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[2] / "data" / "perplexity.json"

TEXT = """\
The ferry to the outer islands leaves at ten minutes past six, whatever the timetable in the harbour office \
says. Marta had known this since she was a child, and so she was already standing on the pier when the first \
gulls came in from the breakwater. It was cold for the end of April. Behind her, in the bakery, somebody \
switched on the radio and switched it off again.

"You will want a coat over there," said the man who took the tickets. "The wind turns at noon."

"I only stay until the evening."

"That is what they all say." He tore the paper in two and gave her the smaller half.

A ship's clock and a computer's clock have the same weakness: both are wrong by a little, all the time, and \
the error grows. A quartz crystal drifts by about twenty parts in a million, which makes 1.7 seconds a day; \
two of them, started together, differ by a minute after five weeks. The cure is old. One compares the clock \
with a better one at regular intervals, notes the difference, and corrects not the hands but the rate. In a \
program this takes a few lines:

def corrected(readings, reference):
    differences = [a - b for a, b in zip(readings, reference)]
    rate = (differences[-1] - differences[0]) / (reference[-1] - reference[0])
    return lambda t: (t - differences[0]) / (1 + rate)

Die beste Uhr ist die, nach der sich alle richten. On the island, the church bell was rung by hand until \
1962, and nobody missed a boat because of it. The table below gives the departures for the summer months: \
June, 6:10, 9:40 and 17:25; July and August, also 13:00; September, as in June, except on Sundays. Children \
under six travel free; bicycles cost 4.50 each way, and dogs, if they are quiet, nothing at all.
"""


def nats(logits: np.ndarray, token: int) -> float:
    """How unlikely a row of logits makes a token."""
    wide = logits.astype(np.float64)
    top = wide.max()
    return float(top + np.log(np.exp(wide - top).sum()) - wide[token])


def _figures(path: Path) -> dict[str, Any]:
    from syntrop.common.gguf import parse
    from syntrop.runtimed import tokenizer
    from syntrop.runtimed.reference import ReferenceModel

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        header = parse(data)
        tokens = tokenizer.load(header.metadata).encode(TEXT)
        rows = ReferenceModel(header, data[:]).logits(tokens)
    surprise = [nats(row, token) for row, token in zip(rows[:-1], tokens[1:], strict=True)]
    return {"tokens": len(tokens), "nats": round(float(np.mean(surprise)), 6)}


if __name__ == "__main__":
    import importlib.util
    import sys

    _spec = importlib.util.spec_from_file_location("test_models", Path(__file__).parents[2] / "models.py")
    assert _spec is not None and _spec.loader is not None
    _models = sys.modules["test_models"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_models)
    DATA.write_text(json.dumps({name: _figures(_models.path(name)) for name in _models.MODELS}, indent=1) + "\n")
