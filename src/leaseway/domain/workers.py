"""Workers: what they report of themselves, and what the store concludes from it.

A worker sends a heartbeat every few seconds. The store keeps the last one with its own clock's time, so that a worker
that was killed is recognized by its silence.
"""

from collections.abc import Iterable
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.ids import SECOND_US, Instant, WorkerId
from leaseway.domain.inspection import LeaseOwner
from leaseway.domain.limits.learnt_use import LearntEstimate

BEAT_SECONDS = 5.0
"""The time between two heartbeats."""
LOST_AFTER_US = 15 * SECOND_US
"""A worker that was silent for longer than this is lost: it has missed two heartbeats."""
FORGET_AFTER_US = 3_600 * SECOND_US
"""A lost worker is listed for this time; the next worker that starts deletes it."""
WORKERS_MAX = 5_000
"""The most workers that are listed. A worker beyond it works and is not listed."""
TENANT_WORKERS_MAX = 500
"""The same for the workers of one tenant, which chooses their names."""
KINDS_MAX = 1_000
"""The most kinds that a heartbeat names."""

NAMES_CHARS_MAX = 4_000
"""The most characters of all queues, of all kinds, and of all estimates that are listed for a worker of one tenant: all
listed workers are read at once."""


class WorkerState(StrEnum):
    RUNNING = "running"
    IDLE = "idle"
    DRAINING = "draining"
    """It claims no more jobs, or was told to stop."""
    LOST = "lost"
    """It was silent for too long: it was killed, frozen, or cannot reach the store."""


class Heartbeat(Struct, frozen=True, kw_only=True):
    """What a worker reports of itself."""

    worker: WorkerId
    host: str = ""
    pid: int = 0
    version: str = ""
    queues: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """Sorted, at most `KINDS_MAX`."""
    slots: int = 0
    """How many jobs it runs at the same time."""
    used: int = 0
    """How many it runs now."""
    waiting: int = 0
    """How many of them wait for a permit or a hold. Those that wait long have lent their slots to other jobs."""
    is_draining: bool = False
    uptime_us: int = 0
    """How long it has been running."""
    tenant: str | None = None
    """It works for this tenant only. A service sets it from the credential; None: for all tenants."""
    estimates: tuple[LearntEstimate, ...] = ()
    """What it has learnt about the use of limits, at most 100."""


def bound_names(beat: Heartbeat) -> Heartbeat:
    """The heartbeat with its first queues, kinds and estimates only, as many as are listed."""
    named = first_names(tuple(each.kind + each.limit for each in beat.estimates))
    return replace(
        beat,
        queues=first_names(beat.queues),
        kinds=first_names(beat.kinds),
        estimates=beat.estimates[: len(named)],
    )


def first_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name, upto in zip(names, accumulate(map(len, names)), strict=True) if upto <= NAMES_CHARS_MAX)


class HeartbeatReply(Struct, frozen=True):
    now: Instant
    drain: bool
    """An operator asks the worker to stop: it claims no more jobs, and finishes those that it runs."""


class StoredWorker(Struct, frozen=True, kw_only=True):
    """A worker as the store knows it."""

    beat: Heartbeat
    """The last heartbeat."""
    since: Instant
    seen_at: Instant
    drain_requested: bool
    now: Instant
    """The store's clock when this was read."""

    @property
    def name(self) -> WorkerId:
        return self.beat.worker

    @property
    def state(self) -> WorkerState:
        if self.now - self.seen_at > LOST_AFTER_US:
            return WorkerState.LOST
        if self.drain_requested or self.beat.is_draining:
            return WorkerState.DRAINING
        return WorkerState.RUNNING if self.beat.used else WorkerState.IDLE

    @property
    def is_present(self) -> bool:
        """It takes jobs now or as soon as it has a free slot."""
        return self.state in (WorkerState.RUNNING, WorkerState.IDLE)

    def serves(self, queue: str, tenant: str | None = None) -> bool:
        """Whether it takes the jobs of this queue, and of this tenant if one is given."""
        return queue in self.beat.queues and (tenant is None or self.beat.tenant in (None, tenant))


class WorkerView(NamedTuple):
    """A worker for display: what it reported, and the leases that it holds."""

    worker: StoredWorker
    state: WorkerState
    owner: LeaseOwner | None
    """None: it holds no lease."""


def join_owners(workers: Iterable[StoredWorker], owners: Iterable[LeaseOwner], now: Instant) -> list[WorkerView]:
    """Every worker with its leases, by name. An owner of leases that is not listed was started by an older version, or
    a moment ago, or was forgotten."""
    leases = {owner.name: owner for owner in owners}
    views = [WorkerView(worker, worker.state, leases.pop(worker.name, None)) for worker in workers]
    for owner in leases.values():
        beat = Heartbeat(worker=owner.name, used=owner.leased)
        worker = StoredWorker(beat=beat, since=owner.seen_at, seen_at=owner.seen_at, drain_requested=False, now=now)
        state = WorkerState.LOST if owner.expired == owner.leased else WorkerState.RUNNING
        views.append(WorkerView(worker, state, owner))
    return sorted(views, key=lambda view: view.worker.name)


class BusyLeases(NamedTuple):
    """What part of the leases of some workers keeps slots busy."""

    occupied: float
    """The rest was taken ahead, waits in place, or belongs to workers that are lost."""
    fed: float
    """The part whose jobs run and do not wait for a permit, as the workers reported: never more than `occupied`."""


def share_busy(views: Iterable[WorkerView], slots: int) -> BusyLeases:
    """`slots`: of workers that have not reported themselves yet. A lease is not yet a busy slot: workers lease ahead,
    and the leases of a killed worker last until they expire."""
    leased = occupied = fed = 0
    for worker, state, owner in views:
        if owner is None or state is WorkerState.LOST:
            leased += 0 if owner is None else owner.leased
            continue
        taken = min(owner.leased - owner.expired, worker.beat.slots or slots)
        leased, occupied = leased + owner.leased, occupied + taken
        fed += min(taken, max(worker.beat.used - worker.beat.waiting, 0))
    return BusyLeases(occupied / leased, fed / leased) if leased else BusyLeases(1.0, 1.0)


def own_workers(workers: Iterable[StoredWorker]) -> list[StoredWorker]:
    """The workers whose host and numbers an operator can act on. A worker of one tenant can report those of others, so
    they are left out; a caller of one tenant sees no others."""
    found = list(workers)
    return [worker for worker in found if worker.beat.tenant is None] or found


def deletion_costs(views: Iterable[WorkerView]) -> dict[str, int]:
    """By host: how many jobs its workers run, the fewest first. Ending that host interrupts so many jobs."""
    costs, found = dict[str, int](), list(views)
    known = {worker.name for worker in own_workers(view.worker for view in found if view.worker.beat.host)}
    for worker, state, owner in (view for view in found if view.worker.name in known):
        if worker.beat.host and state is not WorkerState.LOST:
            running = max(worker.beat.used, 0 if owner is None else owner.leased)
            costs[worker.beat.host] = costs.get(worker.beat.host, 0) + running
    return dict(sorted(costs.items(), key=lambda each: (each[1], each[0])))


def workers_max(tenant: str | None) -> int:
    return WORKERS_MAX if tenant is None else TENANT_WORKERS_MAX
