# SPDX-License-Identifier: Apache-2.0
"""Settings of routerd."""

from __future__ import annotations

from syntrop.common.settings import Setting

FOREIGN = ("providers", "thresholds", "tiers")  # what `config` reads of the same files

# What a reload cannot change while the daemon runs; all other settings it can.
AT_START = ("idle_exit_sec", "listen", "connections_max", "connections_max_per_uid")

TABLE = (
    Setting(
        "engine_timeout_sec",
        float,
        300.0,
        "How long an engine may be silent before a request fails: loading the model and reading the prompt count.",
        unit="seconds",
        minimum=1.0,
    ),
    Setting(
        "headers_after_sec",
        float,
        1.0,
        "How long a stream waits at most for whoever is asked to accept it before its headers are sent; once it "
        "is accepted they are. Errors that come earlier have their proper status, later ones are events in the "
        "stream.",
        unit="seconds",
        minimum=0.0,
        maximum=60.0,
    ),
    Setting(
        "ping_sec",
        float,
        5.0,
        "How often a stream with nothing to send says that it is alive.",
        unit="seconds",
        minimum=0.1,
    ),
    Setting(
        "body_max",
        int,
        8 * 1024 * 1024,
        "Largest body of an HTTP request.",
        unit="bytes",
        minimum=1024,
        maximum=1024 * 1024 * 1024,
    ),
    Setting(
        "keep_alive_sec",
        float,
        75.0,
        "How long an idle HTTP connection is kept. It never keeps the daemon.",
        unit="seconds",
        minimum=1.0,
    ),
    Setting(
        "write_timeout_sec",
        float,
        45.0,
        "How long a client may take nothing of a reply before it is given up.",
        unit="seconds",
        minimum=1.0,
    ),
    Setting(
        "streams_max",
        int,
        128,
        "Requests that are answered at once on one connection of HTTP/2; more are refused, unbegun.",
        minimum=1,
        maximum=65536,
    ),
    Setting(
        "requests_max",
        int,
        4096,
        "Requests that are answered at once; more are refused with 429.",
        minimum=1,
        maximum=65536,
    ),
    Setting(
        "triage_max",
        int,
        16,
        "The same for requests of the suite's own triage, which are counted by themselves.",
        minimum=1,
        maximum=1024,
    ),
    Setting(
        "hosts",
        list,
        [],
        "Names besides localhost, 127.0.0.1 and [::1] that HTTP requests over TCP may give as their host. "
        "Others are refused, so that no web page reaches the router under a name of its own.",
    ),
)
