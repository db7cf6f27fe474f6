"""A source is asked what it knows about itself ─► plan"""

from leaseway.domain.errors import TransientError, UsageError
from leaseway.imports.assembly import Parts
from leaseway.imports.domain.run_state import RunMode
from leaseway.imports.plan.plan import Plan, planned
from leaseway.imports.plan.unlimited import OpenDoor
from leaseway.imports.plan.watermark import History
from leaseway.imports.sources.port import Probe, Refused
from leaseway.system import SystemChance, SystemClock, wall_clock_us
from leaseway.worker.provider_http import Http, HttpEnvironment, SharedClient

NO_HISTORY = History()


async def plan_of(parts: Parts, history: History = NO_HISTORY, wanted: RunMode | None = None) -> Plan:
    """`history` as the sink tells it; without one, everything is read."""
    return planned(
        parts.spec,
        parts.source.caps,
        await probed(parts),
        parts.source.limit,
        parts.source.page_limit,
        base=history.base,
        last_full=history.last_full,
        known=history.known,
        wanted=wanted,
        now=wall_clock_us(),
    )


async def probed(parts: Parts) -> Probe:
    """Nobody counts these few requests."""
    wire = SharedClient()
    try:
        http = Http(HttpEnvironment(wire, SystemClock(), SystemChance()), OpenDoor(), lambda step: step)
        return await parts.source.probe(http)
    except Refused as error:
        raise UsageError(str(error)) from error
    except OSError as error:  # as the HTTP client's own errors are not
        raise unreachable(parts, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "httpx2":
            raise
        raise unreachable(parts, error) from error
    finally:
        await wire.close()


def unreachable(parts: Parts, error: Exception) -> TransientError:
    address = parts.spec.source.base_url or parts.spec.source.file
    return TransientError(f"source {parts.spec.source.name}: {address} cannot be asked: {error}")
