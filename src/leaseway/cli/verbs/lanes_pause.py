"""leaseway lanes pause|resume, and what is paused"""

from collections.abc import Sequence

from leaseway.cli.screen.as_json import document
from leaseway.cli.screen.text import say
from leaseway.cli.settings import Settings
from leaseway.cli.verbs.stores import change
from leaseway.domain.errors import NoSuchJob, UsageError
from leaseway.domain.pauses import Pause
from leaseway.ports.lane_pauses import LanePauses
from leaseway.ports.store import Store


def pause_lanes(settings: Settings, queue: str, tenant: str | None) -> None:
    async def command(store: Store) -> bool:
        return await pausable(store).pause_lanes(queue, tenant)

    is_new = change(settings, command)
    tell(settings, Pause(queue, tenant), True, "paused; what runs goes on" if is_new else "was paused before")


def resume_lanes(settings: Settings, queue: str, tenant: str | None) -> None:
    async def command(store: Store) -> None:
        if not await pausable(store).resume_lanes(queue, tenant):
            known = "; ".join(map(str, await pauses_in(store))) or "none"
            raise NoSuchJob(f"{Pause(queue, tenant)} is not paused; paused are: {known}")

    change(settings, command)
    tell(settings, Pause(queue, tenant), False, "resumed")


def tell(settings: Settings, pause: Pause, is_paused: bool, words: str) -> None:
    if settings.json:
        document({"queue": pause.queue, "tenant": pause.tenant, "paused": is_paused})
    else:
        say(f"{pause}: {words}")


def pausable(store: Store) -> LanePauses:
    if not isinstance(store, LanePauses):
        raise UsageError("lanes cannot be paused through a service from here; use its POST /v1/lanes/pause")
    return store


async def pauses_in(store: Store) -> Sequence[Pause]:
    return await store.pauses() if isinstance(store, LanePauses) else ()
