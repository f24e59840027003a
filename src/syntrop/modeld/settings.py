# SPDX-License-Identifier: Apache-2.0
"""Settings of modeld."""

from __future__ import annotations

from syntrop.common.settings import Setting

TABLE: tuple[Setting, ...] = (
    Setting(
        "storage_path",
        str,
        None,
        "Folder of the store. Without it, the state folder that the service manager gives.",
        section="store",
    ),
    Setting(
        "quota_bytes",
        int,
        0,
        "What all files may occupy; models that were used longest ago make room. 0 for no limit.",
        section="store",
        unit="bytes",
        minimum=0,
    ),
    Setting(
        "free_floor_bytes",
        int,
        512 << 20,
        "What the file system of the store keeps free. 0 for no limit.",
        section="store",
        unit="bytes",
        minimum=0,
    ),
    Setting(
        "sealed_cache_bytes",
        int,
        256 << 20,
        "Parts of models in sealed memory that are kept for the next asker.",
        section="store",
        unit="bytes",
        minimum=0,
    ),
    Setting(
        "sealed_max_bytes",
        int,
        2 << 30,
        "Largest part of a model that is given in sealed memory.",
        section="store",
        unit="bytes",
        minimum=1,
    ),
    Setting(
        "allow_pulls",
        bool,
        True,
        "Whether models may be fetched over the network.",
        section="pull",
    ),
    Setting(
        "bandwidth_bytes_per_sec",
        int,
        0,
        "What all downloads together may take. 0 for no limit.",
        section="pull",
        unit="bytes per second",
        minimum=0,
    ),
)
