# SPDX-License-Identifier: Apache-2.0
"""What a reload of the settings takes over, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from syntrop.common import loop
from syntrop.common.service import Daemon
from syntrop.common.settings import resolve
from syntrop.sentry.assembly import Assembly
from syntrop.sentry.planned import Work
from syntrop.sentry.policy import IGNORE, OBSERVE, TREAT, Occasion
from syntrop.sentry.settings import TABLE

NAME = "systemd-sentry"


def test_a_reload_takes_over_the_settings_and_keeps_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SYNTROP_CONFIG_ROOT", str(tmp_path))
    monkeypatch.delenv("SYNTROP_SENTRY_MODE", raising=False)
    file = tmp_path / f"{NAME}.toml"

    def ruled(assembly: Assembly, unit: str) -> str:
        guards = assembly.supervisor.kit.guards
        return guards.rule([unit], Occasion(), now=guards_now(assembly), weekday=0, minute=0).kind

    def guards_now(assembly: Assembly) -> float:
        return assembly.supervisor.kit.clock.seconds()

    async def main() -> None:
        assembly = Assembly(Daemon(NAME, resolve(NAME, TABLE, [])), str(tmp_path / "state"))
        kit = assembly.supervisor.kit
        now = guards_now(assembly)
        kit.guards.announce(["db.service"], Work(now + 600, "", 0), now)
        kit.guards.budget.take(now)
        assert ruled(assembly, "web.service") == TREAT

        file.write_text(
            '[policy]\nunits_deny = ["web*"]\nactions_per_minute = 1\n[restore]\nprobation_sec = 9.0\n'
            '[diagnose]\nmodel = "another"\n[audit]\nincidents_count = 3\n'
        )
        assembly.retune(resolve(NAME, TABLE, []))
        assert ruled(assembly, "web.service") == OBSERVE
        assert ruled(assembly, "db.service") == IGNORE
        assert kit.guards.budget.wait(now) > 0.0  # what was spent counts by the new limit
        assert kit.settings.probation_sec == 9.0
        assert kit.audit._keep == 3
        assert "when systemd-sentry is restarted" in capfd.readouterr().err

        file.write_text("")
        assembly.retune(resolve(NAME, TABLE, []))
        assert ruled(assembly, "web.service") == TREAT
        assert kit.guards.budget.wait(now) == 0.0
        assert "restarted" not in capfd.readouterr().err
        await assembly.close()

    loop.run(main())
