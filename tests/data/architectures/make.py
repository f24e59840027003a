# SPDX-License-Identifier: Apache-2.0
"""Makes logits.npz: what `transformers` answers for the tiny models of `tests/unit/runtimed/archmodel.py`.

Run by hand, in an environment with torch and transformers (this was made with 2.13.0 and 5.24.0):

    python tests/data/architectures/make.py
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
    spec = importlib.util.spec_from_file_location("archmodel", HERE.parents[1] / "unit/runtimed/archmodel.py")
    assert spec is not None and spec.loader is not None
    models: Any = importlib.util.module_from_spec(spec)
    sys.modules["archmodel"] = models
    spec.loader.exec_module(models)
    torch.manual_seed(0)
    found = {}
    for name, case in models.CASES.items():
        kind = "Mistral" if name == "mistral" else case.architecture.capitalize()
        config = getattr(transformers, kind + ("TextConfig" if kind == "Gemma3" else "Config"))(
            vocab_size=models.VOCAB,
            hidden_size=models.D,
            intermediate_size=models.FF,
            num_hidden_layers=case.layers,
            num_attention_heads=models.HEADS,
            num_key_value_heads=models.KV_HEADS,
            head_dim=case.head_dim,
            max_position_embeddings=128,
            rms_norm_eps=1e-6,
            tie_word_embeddings=case.tied,
            pad_token_id=None,
            bos_token_id=1,
            eos_token_id=2,
            attn_implementation="eager",
            **({"layer_types": layer_types(case.layers)} if kind == "Gemma3" else {}),
            **case.hf,
        )
        model = getattr(transformers, kind + "ForCausalLM")(config).float().eval()
        state = {key: torch.from_numpy(value.copy()) for key, value in models.weights(case).items()}
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert not unexpected, unexpected
        assert set(missing) <= ({"lm_head.weight"} if case.tied else set()), missing
        model.tie_weights()
        tokens = models.tokens(min(models.TOKENS, case.context))
        with torch.no_grad():
            found[name] = model(torch.tensor([tokens])).logits[0].numpy().astype(np.float32)
        print(name, found[name].shape, found[name].std(), np.abs(found[name]).max())
    np.savez_compressed(HERE / "logits.npz", **found)


def layer_types(layers: int) -> list[str]:
    return ["full_attention" if (i + 1) % 3 == 0 else "sliding_attention" for i in range(layers)]


if __name__ == "__main__":
    main()
