# SPDX-License-Identifier: Apache-2.0
"""Settings of systemd-sentry. SIGHUP takes new values of all over but of `mode` and `model`."""

from __future__ import annotations

from syntrop.common import protected
from syntrop.common.settings import Setting

RESIDENT, ON_DEMAND = "resident", "on_demand"

TABLE: tuple[Setting, ...] = (
    Setting(
        "mode",
        str,
        ON_DEMAND,
        "How it learns of failures: resident, by the manager's signals, for which it stays; or on_demand, by what "
        "OnFailure= of units tells its socket. A new value counts from the next start, those of the other "
        "settings but the model's from the next SIGHUP (`systemctl reload`).",
        section="watch",
        choices=(RESIDENT, ON_DEMAND),
        environment="SYNTROP_SENTRY_MODE",
    ),
    Setting(
        "model",
        str,
        "smollm2:135m",
        "Model that is asked to choose among causes. Empty: none, the signatures decide. A new value counts from "
        "the next start.",
        section="diagnose",
    ),
    Setting(
        "patience_sec",
        float,
        3.0,
        "How long what is late is waited for where nothing could be done without it.",
        section="diagnose",
        unit="seconds",
        minimum=0.0,
        maximum=60.0,
    ),
    *protected.SETTINGS,
    Setting(
        "maintenance",
        list,
        [],
        "Times in which units are only observed: '[DAYS] HH:MM-HH:MM [UNIT…]', such as "
        "'sat,sun 22:00-02:30 web*'.",
        section="policy",
    ),
    Setting(
        "actions_per_minute",
        int,
        10,
        "Actions in a minute, on the whole machine. What goes beyond waits.",
        section="policy",
        minimum=1,
        maximum=10000,
    ),
    Setting(
        "actions_per_hour",
        int,
        60,
        "Actions in an hour.",
        section="policy",
        minimum=1,
        maximum=100000,
    ),
    Setting(
        "probation_sec",
        float,
        5.0,
        "How long a unit has to stay healthy after an action.",
        section="restore",
        unit="seconds",
        minimum=0.0,
        maximum=600.0,
    ),
    Setting(
        "start_patience_sec",
        float,
        90.0,
        "How long it may take until it is active.",
        section="restore",
        unit="seconds",
        minimum=0.1,
        maximum=3600.0,
    ),
    Setting(
        "incidents_count",
        int,
        1000,
        "Closed incidents that are kept; the oldest are forgotten first.",
        section="audit",
        minimum=1,
        maximum=100000,
    ),
    Setting(
        "incidents_days",
        float,
        90.0,
        "Age at which they are forgotten.",
        section="audit",
        unit="days",
        minimum=0.01,
        maximum=3650.0,
    ),
)
