"""Log lines: one per event, as text or as JSON objects that name their job and trace."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from leaseway.domain.errors import BadValue
from leaseway.domain.job import Lease, NewJob
from leaseway.domain.outcome import Outcome

VARIABLE = "LEASEWAY_LOG"
KINDS = ("text", "json")

JOB: ContextVar[Lease | None] = ContextVar("leaseway_job", default=None)
"""The job that runs in the current task or thread."""
NO_FIELDS: Mapping[str, str] = {}

trace_fields: Callable[[], Mapping[str, str]] = lambda: NO_FIELDS  # noqa: E731 - replaced when tracing is on
"""Returns the ids of the current trace and span."""


def wants_json() -> bool:
    said = os.environ.get(VARIABLE, "text")
    if said not in KINDS:
        raise BadValue(VARIABLE, f"must be json or text (is {said[:40]!r})")
    return said == "json"


def job_fields() -> Mapping[str, object]:
    lease = JOB.get()
    if lease is None:
        return NO_FIELDS
    return {"job": lease.id, "kind": lease.kind, "tenant": lease.tenant, "attempt": lease.attempts}


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        said = {"message": record.getMessage()} if fields is None else {"event": record.getMessage(), **fields}
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        return json.dumps({**line, **job_fields(), **trace_fields(), **said}, default=str)


class NullSpan:
    """The span of an attempt or a request when tracing is off."""

    def end(self, *_: object) -> None:
        pass


NULL_SPAN = NullSpan()


class JobLogContext:
    """Adds the job to the log lines of its handler, without tracing."""

    has_traces = False

    @contextmanager
    def submitting(self, jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
        yield jobs

    def origin(self) -> str | None:
        return None

    @contextmanager
    def running(self, lease: Lease, origin: str | None) -> Iterator["NullSpan"]:
        before = JOB.set(lease)
        try:
            yield NULL_SPAN
        finally:
            JOB.reset(before)

    @contextmanager
    def serving(self, method: str, headers: Mapping[str, str]) -> Iterator["NullSpan"]:
        yield NULL_SPAN


def outcome_name(outcome: Outcome) -> str:
    """done, failed, snoozed, released, cancelled, abandoned."""
    name = type(outcome).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


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
