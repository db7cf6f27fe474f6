"""Probe a source and plan the next run."""

import asyncio

from leaseway.domain.errors import TransientError, UsageError
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.imports.assembly import ImportParts
from leaseway.imports.domain.run_state import RunMode
from leaseway.imports.plan.plan import Plan, build_plan, load_history
from leaseway.imports.plan.watermark import RunHistory
from leaseway.imports.sources.port import SourceProbe, SourceRefused
from leaseway.system import SystemChance, SystemClock, wall_clock_us
from leaseway.worker.provider_http import Delivery, Http, HttpEnvironment, RequestGrant, SharedClient


class UnlimitedRequests:
    async def before(self) -> RequestGrant:
        return AlwaysGranted()

    async def after(self, grant: RequestGrant, status: RateLimitStatus | None, delivery: Delivery) -> None:
        """Nothing to record."""


class AlwaysGranted:
    def is_valid(self) -> bool:
        return True


NO_HISTORY = RunHistory()


class SourceUnavailable(TransientError):
    """The source cannot be probed now."""


async def make_plan(parts: ImportParts, mode: RunMode | None = None, probe_seconds_max: float | None = None) -> Plan:
    """Plan the next run from the runs in the sink, which is open, and from what the source reports about itself."""
    history = await load_history(parts.sink, parts.spec.source.name, parts.task.spec_hash)
    try:
        async with asyncio.timeout(probe_seconds_max):
            return await plan_with_history(parts, history, mode)
    except TimeoutError as error:
        raise SourceUnavailable(
            f"source {parts.spec.source.name}: did not answer within {probe_seconds_max:g} s; try again"
        ) from error
    except SourceUnavailable:
        raise
    except TransientError as error:
        raise SourceUnavailable(str(error)) from error


async def plan_with_history(
    parts: ImportParts, history: RunHistory = NO_HISTORY, wanted: RunMode | None = None
) -> Plan:
    """Without a history, the plan is a full run."""
    return build_plan(
        parts.spec,
        parts.source.caps,
        await probe_source(parts),
        parts.source.limit,
        parts.source.page_limit,
        base=history.base,
        last_full=history.last_full,
        known=history.known,
        wanted=wanted,
        now=wall_clock_us(),
    )


async def probe_source(parts: ImportParts) -> SourceProbe:
    """These few requests are not limited or counted."""
    wire = SharedClient()
    try:
        http = Http(HttpEnvironment(wire, SystemClock(), SystemChance()), UnlimitedRequests(), lambda step: step)
        return await parts.source.probe(http)
    except SourceRefused as error:
        raise UsageError(str(error)) from error
    except OSError as error:  # errors of the HTTP client are not OSErrors
        raise unreachable(parts, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "httpx2":
            raise
        raise unreachable(parts, error) from error
    finally:
        await wire.close()


def unreachable(parts: ImportParts, error: Exception) -> SourceUnavailable:
    address = parts.spec.source.base_url or parts.spec.source.file
    return SourceUnavailable(f"source {parts.spec.source.name}: {address} cannot be reached: {error}")
