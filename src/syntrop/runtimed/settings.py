# SPDX-License-Identifier: Apache-2.0
"""Settings of runtimed."""

from __future__ import annotations

from syntrop.common.settings import Setting

TABLE = (
    Setting(
        "default_model",
        str,
        "",
        "Model to run where a caller names none. Without it, such calls are refused.",
    ),
    Setting(
        "threads",
        int,
        0,
        "Threads that compute. 0 is one for each core that this process may use. SIGHUP takes a new value over.",
        minimum=0,
        maximum=256,
    ),
    Setting(
        "kernel_level",
        str,
        "auto",
        "Instruction set of the kernels. auto is the best that this processor has; one that it lacks is refused.",
        choices=("auto", "scalar", "avx2", "avx512", "amx"),
    ),
    Setting(
        "slots",
        int,
        4,
        "Generations that run at once; further ones wait.",
        minimum=1,
        maximum=64,
    ),
    Setting(
        "queue_max",
        int,
        64,
        "Generations that may wait for a slot; further ones are refused.",
        minimum=0,
        maximum=4096,
    ),
    Setting(
        "prefill_chunk",
        int,
        256,
        "Prompt tokens that are read between two tokens of the generations that run beside.",
        unit="tokens",
        minimum=1,
        maximum=448,
    ),
    Setting(
        "models_max",
        int,
        3,
        "Models in memory. To load one more, the idle one that was not used for longest goes.",
        minimum=1,
        maximum=64,
    ),
    Setting(
        "context_max",
        int,
        0,
        "Longest sequence that is run, where models could do more. 0 is each model's own.",
        unit="tokens",
        minimum=0,
    ),
    Setting(
        "memory_max",
        int,
        0,
        "Memory that weights and caches may take together. 0 is four fifths of what is available when the first "
        "model is loaded.",
        unit="bytes",
        minimum=0,
    ),
    Setting(
        "prefixes_max",
        int,
        0,
        "The part of it that may be kept of earlier prompts, so that they need not be read again. 0 is an eighth.",
        unit="bytes",
        minimum=0,
    ),
    Setting(
        "kv_type",
        str,
        "f16",
        "What keys and values are kept in: f16, or q8, which takes about six tenths of that and is a little off.",
        choices=("f16", "q8"),
    ),
    Setting(
        "yield_sec",
        float,
        5.0,
        "How long Batch work stands still when the host asks for its resources (SIGUSR1).",
        unit="seconds",
        minimum=0,
    ),
    Setting(
        "lease_wait_sec",
        float,
        0.3,
        "How long work waits for inferenced to lease it memory before it goes on without.",
        unit="seconds",
        minimum=0,
        maximum=60,
    ),
    Setting(
        "pressure_wait_sec",
        float,
        30.0,
        "How long loading a model waits for critical pressure to pass before it is refused.",
        unit="seconds",
        minimum=0,
        maximum=600,
    ),
    Setting(
        "store_timeout_sec",
        float,
        10.0,
        "How long modeld may take to answer.",
        unit="seconds",
        minimum=0.1,
    ),
)
