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
        event = getattr(record, "event", None) or record.getMessage()
        said = {"message": record.getMessage()} if fields is None else {"event": event, **fields}
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        return json.dumps({**line, **job_fields(), **trace_fields(), **said}, default=str)


REPEATS_MAX = 20
REPEATS_SECONDS = 10.0
KINDS_MAX = 1_000
NOISY = ("asyncio", "uvicorn", "leaseway.api")
"""Loggers whose lines clients of the service can cause."""


class RepeatFilter(logging.Filter):
    """Leaves out lines of a kind after the first few, so that no client can fill the disk with them.

    The next line after the interval says how many were left out. Lines of the app's own loggers are not affected.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        """By logger and format: when the interval began, and how many lines there were."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(NOISY) or record.levelno < logging.WARNING:
            return True
        kind = record.name, str(record.msg)[:100]
        began, count = self._seen.get(kind, (record.created, 0))
        left_out = 0
        if record.created - began > REPEATS_SECONDS:
            left_out, began, count = max(count - REPEATS_MAX, 0), record.created, 0
        if len(self._seen) >= KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = began, count + 1
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out:,} similar lines were left out)", None
        return count < REPEATS_MAX


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
    "undecryptable": logging.WARNING,
    "key_left_pool": logging.ERROR,
    "store_unavailable": logging.ERROR,
    "handlers_stuck": logging.ERROR,
    "worker_started": logging.INFO,
    "worker_stopped": logging.INFO,
    "draining": logging.INFO,
    "cron_fired": logging.INFO,
    "pruned": logging.INFO,
    "fleet_decision": logging.INFO,
    "fleet_worker_ready": logging.INFO,
    "fleet_worker_drains": logging.INFO,
    "fleet_worker_ended": logging.INFO,
    "fleet_worker_lost": logging.WARNING,
    "fleet_restarting": logging.INFO,
    "fleet_restart_failed": logging.ERROR,
    "fleet_draining": logging.INFO,
}


def render_fields(fields: Mapping[str, object]) -> str:
    return " ".join(f"{key}={render_value(str(value))}" for key, value in fields.items())


def render_value(text: str) -> str:
    """A value that could be mistaken for several fields is quoted, as a JSON string."""
    is_plain = text and text.isprintable() and not any(char in text for char in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)


class LogEvents:
    def __init__(self) -> None:
        self._logger = logging.getLogger("leaseway")

    def emit(self, name: str, /, **fields: object) -> None:
        level = LEVELS.get(name, logging.DEBUG)
        if self._logger.isEnabledFor(level):
            extra = {"event": name, "fields": fields}
            self._logger.log(level, "%s %s", name, render_fields(fields), extra=extra)


class NoEvents:
    def emit(self, name: str, /, **fields: object) -> None:
        pass
