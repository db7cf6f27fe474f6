"""`service.live`: admits subscribers and connects them with the poller."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, get_args

from leaseway.api.auth.authentication import Authenticator
from leaseway.api.errors import Problem
from leaseway.api.imports.monitor import ImportMonitor
from leaseway.api.live.change_log import View
from leaseway.api.live.poller import EndReason, Poller, Subscriber
from leaseway.api.metrics import Family, Sample, counter, gauge
from leaseway.api.routing import visible_tenant
from leaseway.api.schemas.imports import ImportProgressDocument
from leaseway.api.settings import LiveSettings
from leaseway.domain.identity import Caller, Scope
from leaseway.domain.ids import Instant, JobId
from leaseway.worker.environment import Environment

ID_LENGTH = 26
RETRY_SECONDS = 5


class LiveService(Protocol):
    """The part of the service that the live stream needs."""

    world: Environment
    authenticator: Authenticator | None
    stopping: asyncio.Event
    live: "LiveHub"
    import_monitor: ImportMonitor | None


class LiveHub:
    """For one process and its event loop. The poller starts with the first subscriber, when the store is open."""

    def __init__(self, service: LiveService) -> None:
        self.settings = LiveSettings()
        self._service = service
        self._poller: Poller | None = None
        self._ended = dict.fromkeys(get_args(EndReason), 0)

    def families(self) -> Iterator[Family]:
        """Metrics for Prometheus."""
        count = 0 if self._poller is None else self._poller.count()
        yield gauge("live_subscribers", "Subscribers of the live stream in this process.", [Sample(count)])
        yield counter(
            "live_subscribers_ended_total", "Subscriptions that have ended, by reason.",
            [Sample(many, {"reason": reason}) for reason, many in self._ended.items()],
        )  # fmt: skip

    @property
    def poller(self) -> Poller:
        if self._poller is None:
            service = self._service
            self._poller = Poller(service.world, service.stopping, lambda: self.settings, self._imports)
        return self._poller

    def _imports(self) -> list[ImportProgressDocument]:
        monitor = self._service.import_monitor
        return [] if monitor is None else monitor.documents()

    @asynccontextmanager
    async def subscribe(
        self, caller: Caller, received: Instant | None, follow: Sequence[str] = (), tenant: str | None = None
    ) -> AsyncIterator[Subscriber]:
        """Problem: there are too many subscribers, or the caller may not read the tenant."""
        view = View(visible_tenant(caller, tenant), caller.sees_all, caller.may(Scope.IMPORTS_READ))
        ids = check_ids(follow, self.settings.follow_max)
        self._refuse_crowds(caller.tenant)
        subscriber = Subscriber(caller.tenant, view, received)
        self.poller.add(subscriber)
        try:
            self.follow(subscriber, ids)
            yield subscriber
        finally:
            self.poller.remove(subscriber)
            self._ended[subscriber.end_reason or "disconnected"] += 1

    def follow(self, subscriber: Subscriber, ids: Sequence[JobId]) -> None:
        if not self.poller.follow(subscriber, ids):
            most = self.settings.tenant_followed_max
            raise busy(
                f"follow: this tenant follows up to {most:,} jobs in this process; follow fewer jobs, or poll them "
                "with GET /v1/jobs/{id}"
            )

    async def close(self) -> None:
        if self._poller is not None:
            await self._poller.close()

    def _refuse_crowds(self, tenant: str) -> None:
        settings = self.settings
        if self._service.stopping.is_set():
            raise busy("the service is shutting down; reconnect", 503)
        count, own = self.poller.count(), self.poller.count(tenant)
        if count >= settings.subscribers_max:
            raise busy(f"the limit of {settings.subscribers_max:,} subscribers is reached; try again later", 503)
        left_by_others = settings.subscribers_max - (count - own)
        if own >= (most := min(settings.tenant_subscribers_max, max(left_by_others // 2, 1))):
            raise busy(f"this tenant has reached its limit of {most:,} subscribers; close some, or try again later")


def check_ids(given: Sequence[str], count_max: int) -> list[JobId]:
    if len(given) > count_max:
        raise Problem(422, "invalid", f"follow: must be at most {count_max} ids (are {len(given):,})")
    if not all(len(id_) == ID_LENGTH and id_.isascii() and id_.isalnum() for id_ in given):
        raise Problem(422, "invalid", "follow: must be ids of jobs")
    return [JobId(id_) for id_ in given]


def busy(detail: str, status: int = 429) -> Problem:
    code = "too_many_subscribers" if status == 429 else "unavailable"
    return Problem(status, code, detail, headers={"Retry-After": str(RETRY_SECONDS)})
