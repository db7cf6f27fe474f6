"""Log events: the name of the event, then its attributes."""

import logging

LEVELS = {
    "attempt_failed": logging.WARNING,
    "lease_lost": logging.WARNING,
    "settlement_refused": logging.WARNING,
    "store_unavailable": logging.ERROR,
    "handlers_stuck": logging.ERROR,
    "worker_started": logging.INFO,
    "worker_stopped": logging.INFO,
    "draining": logging.INFO,
    "cron_fired": logging.INFO,
    "pruned": logging.INFO,
}


class LogEvents:
    def __init__(self) -> None:
        self._logger = logging.getLogger("leaseway")

    def emit(self, name: str, /, **fields: object) -> None:
        level = LEVELS.get(name, logging.DEBUG)
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s %s", name, " ".join(f"{key}={value}" for key, value in fields.items()))


class NoEvents:
    def emit(self, name: str, /, **fields: object) -> None:
        pass
