# SPDX-License-Identifier: Apache-2.0
"""What routerd's interfaces share: the configuration in force, the router that it makes, and what is counted."""

from __future__ import annotations

from time import monotonic

from syntrop import __version__
from syntrop.routerd.status import Counters, read_rss

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.psi import Pressure
    from syntrop.common.service import Daemon
    from syntrop.routerd.config import Config
    from syntrop.routerd.metrics import Metrics
    from syntrop.routerd.router import Router


class Core:
    """What HTTP and Varlink share. The router is made when the first request needs it."""

    def __init__(self, daemon: Daemon) -> None:
        """Raises ConfigError and SettingsError when there is a configuration that cannot be used."""
        from syntrop.common.settings import config_files

        self.daemon = daemon
        self._started = daemon.settings  # those that the daemon began with
        self.counters = Counters()
        self._metrics: Metrics | None = None
        self._router: Router | None = None
        # Without a file there is nothing that could be wrong, and it is not looked at before it is needed.
        self._config: Config | None = _load() if config_files(daemon.name) else None

    @classmethod
    def start(cls, daemon: Daemon) -> Core:
        """Like the class itself; what is wrong with the configuration ends the process, with status 78."""
        from syntrop.common.settings import CONFIG_STATUS, config_files

        if not config_files(daemon.name):
            return cls(daemon)
        from syntrop.routerd.config import ConfigError

        try:
            return cls(daemon)
        except ConfigError as error:
            from syntrop.common import journal

            journal.error(str(error))
            raise SystemExit(CONFIG_STATUS) from None

    @property
    def metrics(self) -> Metrics:
        if self._metrics is None:
            from syntrop.routerd.metrics import Metrics

            self._metrics = Metrics()
        return self._metrics

    @property
    def router(self) -> Router:
        if self._router is None:
            from syntrop.routerd import fleet
            from syntrop.routerd.router import Router

            self._router = Router(
                self._config or _load(),
                lambda config, secret: fleet.create(
                    config, secret, engine_timeout=self.daemon.settings.engine_timeout_sec
                ),
                metrics=self.metrics,
            )
        return self._router

    def reload(self) -> list[str]:
        """Read the files again; the settings that are new and wait for the next start. Raises ConfigError or
        SettingsError, and then nothing has changed."""
        import sys

        from syntrop.common import journal
        from syntrop.common.settings import resolve
        from syntrop.routerd.settings import AT_START, FOREIGN, TABLE

        settings = resolve(self.daemon.name, TABLE, sys.argv[1:], foreign=FOREIGN)
        self._config = _load()
        self.daemon.settings = settings
        journal.set_level(settings.log_level)
        if self._router is not None:
            self._router.apply(self._config)
            self._router.set_engine_timeout(settings.engine_timeout_sec)
        waiting = [name for name in AT_START if getattr(settings, name) != getattr(self._started, name)]
        rest = f", but for what waits for the next start: {', '.join(waiting)}" if waiting else ""
        journal.notice("The configuration was read again" + rest)
        return waiting

    def on_hangup(self) -> None:
        """SIGHUP: what `Reload` does, told to the log."""
        from syntrop.common import journal
        from syntrop.common.settings import SettingsError
        from syntrop.routerd.config import ConfigError

        try:
            self.reload()
        except (ConfigError, SettingsError) as error:
            journal.error(f"The configuration is refused, and the one before stays: {error}")

    async def stop(self) -> None:
        if self._router is not None:
            await self._router.close()

    def status(self) -> dict[str, Any]:
        now = monotonic()
        members = [one for one in self.router.members.values() if one.config.enabled]
        healthy = sum(one.usable and one.health.healthy(now) for one in members)
        return self.counters.report(__version__, self.pressure(), read_rss(), len(members), healthy)

    def pressure(self) -> dict[str, Pressure]:
        return self.router.pressed.readings()

    def metrics_text(self) -> str:
        return self.metrics.render(
            version=__version__,
            uptime=monotonic() - self.counters.started,
            active=self.counters.active,
            rss=read_rss(),
            members=self.router.members.values(),
            pressure=self.pressure(),
            shedding=self.router.pressed.host().shedding,
            now=monotonic(),
        )


def _load() -> Config:
    """The configuration of all files. Raises ConfigError and SettingsError."""
    from syntrop.common.settings import config_files
    from syntrop.routerd import config

    files = []
    for path in config_files("routerd"):
        try:
            with open(path, encoding="utf-8") as file:
                files.append((path, file.read()))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise config.ConfigError(f"{path}: cannot be read: {reason}") from None
    return config.load(files)
