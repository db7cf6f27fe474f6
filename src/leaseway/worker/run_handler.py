"""submit ─► store ─► exchange ─► [run handler] ─► settle

One attempt, from a lease to an outcome. Whatever a handler does becomes a value; only the worker's own end passes
through.
"""

import asyncio
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from leaseway.domain import payload
from leaseway.domain.errors import LeaseLost
from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import Failure
from leaseway.domain.kind import Kind
from leaseway.domain.limits.rate_limit_headers import Throttled
from leaseway.domain.outcome import (
    Abandoned,
    Cancelled,
    Done,
    Fail,
    Failed,
    Outcome,
    Released,
    Snooze,
    Snoozed,
)
from leaseway.worker.attempt import Attempt, Stop
from leaseway.worker.context import Context, SyncContext
from leaseway.worker.environment import Environment
from leaseway.worker.limiter_client import LimiterClient
from leaseway.worker.provider_calls import ProviderCalls
from leaseway.worker.provider_http import SharedClient
from leaseway.worker.threads import HandlerThreads

C = TypeVar("C", bound=Context)

THROTTLED_US = 10 * SECOND_US
"""How long a job waits if the provider does not say."""
CODE_MAX = 200
MESSAGE_MAX = 2_000
TRACEBACK_MAX = 16_000

STOPPED: dict[Stop, Outcome] = {Stop.CANCELLED: Cancelled(), Stop.LOST: Abandoned(), Stop.DRAIN: Released()}


class HandlerRunner:
    def __init__(self, kinds: Mapping[str, Kind], world: Environment, tokens: LimiterClient, key_keep_us: int) -> None:
        self._kinds = kinds
        self._world = world
        self._tokens = tokens
        self._key_keep_us = key_keep_us
        self._wire = SharedClient()
        self.threads = HandlerThreads()

    async def close(self) -> None:
        await self._wire.close()

    async def run(self, running: Attempt) -> Outcome:
        running.is_started = True
        if running.stop is not None:
            return STOPPED[running.stop]
        lease = running.lease
        kind = self._kinds.get(lease.kind)
        if kind is None:
            known = ", ".join(sorted(self._kinds)) or "none"
            # It may be retried: a worker of a newer version may know this kind.
            return Failed(Failure("unknown_kind", f"this worker has no job named {lease.kind!r}; it knows: {known}"))
        try:
            arguments = kind.decode(lease.payload)
        except Exception as error:  # noqa: BLE001 - an argument's own type may raise anything
            message = f"the stored arguments cannot be read: {error_text(error)}"
            return Failed(Failure("bad_payload", clean(message[:MESSAGE_MAX])), may_retry=False)
        return await self._attempt(running, kind, arguments)

    async def _attempt(self, running: Attempt, kind: Kind, arguments: dict[str, Any]) -> Outcome:
        try:
            value = await self._call(running, kind, arguments)
        except asyncio.CancelledError:
            return self._when_stopped(running)
        except Snooze as snooze:
            return Snoozed(snooze.run_at, snooze.delay_us)
        except Throttled as throttled:
            # The limit is closed for everybody by now: the job waits with the others, and no attempt is gone.
            return Snoozed(None, throttled.retry_after_us or THROTTLED_US)
        except KeyboardInterrupt:
            raise
        except LeaseLost:
            return Abandoned()
        except Fail as error:
            return Failed(describe_failure(error, error.code), may_retry=False)
        except BaseException as error:  # noqa: BLE001 - any failure of a handler becomes a value
            # What it raises because we stopped it is not the job's failure.
            if running.stop is not None:
                return STOPPED[running.stop]
            return Failed(describe_failure(error, type(error).__name__))
        return self._done(running, value)

    def _done(self, running: Attempt, value: Any) -> Outcome:
        try:
            result = "null" if value is None else payload.encode(value, "result")
        except Exception as error:  # noqa: BLE001 - a result may have any type, and its fields may raise anything
            return Failed(describe_failure(error, "bad_result"), may_retry=False)
        return Done(result, tuple(running.children))

    async def _call(self, running: Attempt, kind: Kind, arguments: dict[str, Any]) -> Any:
        timeout_us = running.lease.timeout_us
        if timeout_us is None:
            return await self._invoke(running, kind, arguments)
        seconds = timeout_us / SECOND_US
        try:
            async with asyncio.timeout(seconds) as scope:
                return await self._invoke(running, kind, arguments)
        except TimeoutError as error:
            if not scope.expired():
                raise
            running.timed_out = True
            raise TimedOut(f"the attempt took longer than {seconds:g} s") from error

    async def _invoke(self, running: Attempt, kind: Kind, arguments: dict[str, Any]) -> Any:
        if kind.is_async:
            if kind.takes_context:
                return await kind.function(self._context(Context, running, kind, arguments), **arguments)
            return await kind.function(**arguments)
        call = partial(kind.function, **arguments)
        if kind.takes_context:
            call = partial(call, self._context(SyncContext, running, kind, arguments))
        return await self.threads.run(call)

    def _context(self, context: type[C], running: Attempt, kind: Kind, arguments: dict[str, Any]) -> C:
        calls = ProviderCalls(running, kind.demands, arguments, self._tokens, self._world)
        return context(running, self._world, calls, self._wire, self._key_keep_us)

    def _when_stopped(self, running: Attempt) -> Outcome:
        if running.stop is not None:
            return STOPPED[running.stop]
        # Who ends the worker says so in `stop`: this came from the handler, or from what it awaited.
        return Failed(Failure("CancelledError", "the handler was cancelled, and not by its worker"))


class TimedOut(Exception):
    """The attempt's time is over."""


def describe_failure(error: BaseException, code: str) -> Failure:
    """The error as text, bounded, with characters that every store can keep."""
    if isinstance(error, TimedOut):
        return Failure("timeout", str(error))
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - a broken exception must not become ours
        lines = ""
    message = error_text(error)
    # The end of a traceback says what happened; the beginning only how one got there.
    return Failure(clean(code[:CODE_MAX]), clean(message[:MESSAGE_MAX]), clean(lines[-TRACEBACK_MAX:]))


def error_text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - its __str__ is the user's
        return f"{type(error).__name__}, whose text cannot be read"


def clean(text: str) -> str:
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
