"""A job between exchange and settlement: what the worker, the handler and the renewal know of it."""

import asyncio
from enum import Enum

from leaseway.domain import payload
from leaseway.domain.job import Lease, NewJob
from leaseway.domain.limits.limit import PermitRequest
from leaseway.worker.limiter_client import Permit


class Stop(Enum):
    """Why a handler was stopped before its end."""

    CANCELLED = "somebody cancelled the job"
    LOST = "the lease is lost"
    DRAIN = "the worker is going away"


class Attempt:
    """Changed by the event loop only, except `renewed_at` and `stop`, which the renewal may set from its thread."""

    __slots__ = (
        "children",
        "is_plain",
        "is_started",
        "lease",
        "origin",
        "progress",
        "progress_is_new",
        "renewed_at",
        "seat",
        "stop",
        "task",
        "timed_out",
        "token",
    )

    def __init__(self, lease: Lease, sent_at: float) -> None:
        self.lease = lease
        self.renewed_at = sent_at
        """On the worker's own clock, from before the request left: never later than the store's view."""
        self.task: asyncio.Task[None] | None = None
        self.stop: Stop | None = None
        self.timed_out = False
        self.progress: str | None = None
        self.progress_is_new = False
        self.is_plain = False
        self.is_started = False
        self.children: list[NewJob] = []
        self.token: Permit | None = None
        """What admitted it, for its first call."""
        self.origin: str | None = None
        """Who submitted it, as far as anybody traces."""
        self.seat: PermitRequest | None = None
        """Of its tenant, held until it ends."""

    def halt(self, why: Stop) -> None:
        """Ask the handler to stop. The first reason counts."""
        if self.stop is None:
            self.stop = why
            # A task that is cancelled before its first step ends without a word: such a one looks at `stop` instead.
            if self.is_started and self.task is not None:
                self.task.cancel()

    def report(self, done: float, total: float | None, message: str | None) -> None:
        self.progress = payload.encode({"done": done, "total": total, "message": message}, "progress")
        self.progress_is_new = True
