# SPDX-License-Identifier: Apache-2.0
"""Settings of modeld-pull."""

from __future__ import annotations

from syntrop.common.settings import Setting

TABLE: tuple[Setting, ...] = (
    Setting(
        "hub",
        str,
        "https://huggingface.co",
        "Hub that organisation/repository is looked for in.",
        section="pull",
    ),
    Setting(
        "library",
        str,
        "https://registry.ollama.ai",
        "Registry that name:tag is looked for in.",
        section="pull",
    ),
    Setting(
        "mirrors",
        list,
        [],
        "Other places of the same files, as PREFIX=PREFIX of addresses; they are tried first.",
        section="pull",
    ),
    Setting(
        "stall_sec",
        float,
        30.0,
        "Time without a byte after which a connection is given up and taken up again.",
        section="pull",
        unit="seconds",
        minimum=0.05,
    ),
    Setting(
        "tries",
        int,
        6,
        "How often in a row a source may fail before the download does.",
        section="pull",
        minimum=1,
    ),
    Setting(
        "longest_wait_sec",
        float,
        60.0,
        "Longest wait between two tries, also where a server asks for more.",
        section="pull",
        unit="seconds",
        minimum=0,
    ),
    Setting(
        "ca_file",
        str,
        None,
        "Certificates to trust. Without it, those of the system.",
        section="pull",
    ),
)
