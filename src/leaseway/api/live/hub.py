"""What the routes of this house part work with; `service.live`."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, get_args

from leaseway.api.auth.authentication import Authenticator
from leaseway.api.errors import Problem
from leaseway.api.imports.monitor import ImportMonitor
from leaseway.api.live.change_log import View
from leaseway.api.live.poller import Lookout
from leaseway.api.live.settings import Bounds
from leaseway.api.live.subscribers import Listener, Why
from leaseway.api.metrics.prometheus_text import Family, Sample, counter, gauge
from leaseway.api.routing import visible_tenant
from leaseway.api.schemas.imports import ImportProgressDocument
from leaseway.domain.identity import Caller, Scope
from leaseway.domain.ids import Instant, JobId
from leaseway.worker.environment import Environment

ID_LENGTH = 26
RETRY_SECONDS = 5


class House(Protocol):
    """What is needed of the service."""

    world: Environment
    authenticator: Authenticator | None
    stopping: asyncio.Event
    live: "LiveHub"
    import_monitor: ImportMonitor | None


class LiveHub:
    """Of one process and its loop. The lookout begins with the first listener: before, there may be no store."""

    def __init__(self, service: House) -> None:
        self.bounds = Bounds()
        self._service = service
        self._lookout: Lookout | None = None
        self._ended = dict.fromkeys(get_args(Why), 0)

    def families(self) -> Iterator[Family]:
        """For Prometheus."""
        count = 0 if self._lookout is None else self._lookout.count()
        yield gauge("live_listeners", "Who follows the live stream of this process.", [Sample(count)])
        yield counter(
            "live_listeners_ended_total", "Listeners that have gone, by reason; slow: they can resume.",
            [Sample(many, {"reason": why}) for why, many in self._ended.items()],
        )  # fmt: skip

    @property
    def lookout(self) -> Lookout:
        if self._lookout is None:
            house = self._service
            self._lookout = Lookout(house.world, house.stopping, lambda: self.bounds, self._imports)
        return self._lookout

    def _imports(self) -> list[ImportProgressDocument]:
        watch = self._service.import_monitor
        return [] if watch is None else watch.documents()

    @asynccontextmanager
    async def listening(
        self, caller: Caller, told: Instant | None, follow: Sequence[str] = (), tenant: str | None = None
    ) -> AsyncIterator[Listener]:
        """Problem: there are too many, or he asks for what he may not."""
        view = View(visible_tenant(caller, tenant), caller.sees_all, caller.may(Scope.IMPORTS_READ))
        ids = followed(follow, self.bounds.follow_max)
        self._refuse_crowds(caller.tenant)
        listener = Listener(caller.tenant, view, told)
        self.lookout.join(listener)
        try:
            self.follow(listener, ids)
            yield listener
        finally:
            self.lookout.leave(listener)
            self._ended[listener.why or "left"] += 1

    def follow(self, listener: Listener, ids: Sequence[JobId]) -> None:
        if not self.lookout.follow(listener, ids):
            raise busy("follow: too many jobs are followed here; ask for them with GET /v1/jobs/{id}")

    async def close(self) -> None:
        if self._lookout is not None:
            await self._lookout.close()

    def _refuse_crowds(self, tenant: str) -> None:
        if self._service.stopping.is_set():
            raise busy("the service stops; come again", 503)
        if self.lookout.count() >= self.bounds.listeners_max:
            raise busy(f"{self.bounds.listeners_max:,} listen here already; try again, or ask for what you need", 503)
        if self.lookout.count(tenant) >= self.bounds.tenant_listeners_max:
            raise busy(f"{self.bounds.tenant_listeners_max:,} of this tenant listen here already; close some")


def followed(given: Sequence[str], most: int) -> list[JobId]:
    if len(given) > most:
        raise Problem(422, "invalid", f"follow: must be at most {most} ids (are {len(given):,})")
    if not all(len(id_) == ID_LENGTH and id_.isascii() and id_.isalnum() for id_ in given):
        raise Problem(422, "invalid", "follow: must be ids of jobs")
    return [JobId(id_) for id_ in given]


def busy(detail: str, status: int = 429) -> Problem:
    code = "too_many_listeners" if status == 429 else "unavailable"
    return Problem(status, code, detail, headers={"Retry-After": str(RETRY_SECONDS)})
