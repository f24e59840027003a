# SPDX-License-Identifier: Apache-2.0
"""Makes vectors.npz: what `transformers`, in float64, makes of the texts of `tests/unit/runtimed/encodermodel.py`
with the tiny encoders there: [text, pooling, column], of length 1.

Run by hand, in an environment with torch and transformers (this was made with 2.13.0 and 5.24.0):

    python tests/data/encoders/make.py
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent


def main() -> None:
    spec = importlib.util.spec_from_file_location(
        "encodermodel", HERE.parents[1] / "unit/runtimed/encodermodel.py"
    )
    assert spec is not None and spec.loader is not None
    models: Any = importlib.util.module_from_spec(spec)
    sys.modules["encodermodel"] = models
    spec.loader.exec_module(models)
    # Rotations ask for float32 wherever they are computed, which would be all that is not exact.
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    found = {}
    for name, case in models.CASES.items():
        if case.oracle:
            continue
        given = dict(case.config)
        config = transformers.AutoConfig.for_model(given.pop("model_type"), attn_implementation="eager", **given)
        model = transformers.AutoModel.from_config(config).double().eval()
        state = {key: torch.from_numpy(value.astype(np.float64)) for key, value in models.weights(name).items()}
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert not unexpected, unexpected
        assert all(one.startswith("pooler.") for one in missing), missing
        rows = []
        for text in models.texts():
            with torch.no_grad():
                hidden = model(torch.tensor([text])).last_hidden_state[0].numpy()
            assert hidden.dtype == np.float64
            pooled = np.array([hidden.mean(axis=0), hidden[0], hidden[-1]])
            rows.append(pooled / np.linalg.norm(pooled, axis=1, keepdims=True))
        found[name] = np.array(rows, dtype=np.float32)
        print(name, found[name].shape, np.abs(found[name]).max())
    np.savez_compressed(HERE / "vectors.npz", **found)


if __name__ == "__main__":
    main()
