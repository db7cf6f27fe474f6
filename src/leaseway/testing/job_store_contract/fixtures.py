"""Fixtures of the contract: jobs by number, workers that claim and settle, and their settlements."""

from collections.abc import Awaitable, Mapping
from itertools import count
from typing import Any

from msgspec.structs import replace

from leaseway.domain.errors import KeyConflict
from leaseway.domain.exchange import Admit, Exchange, ExchangeReply, Gate, HeldLease, Wants
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import Failure, Job, Lease, NewJob, Settlement, State
from leaseway.ports.store import Store

LEASE_US = 15 * SECOND_US
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
ALL = JobFilter()
QUEUES = ("default",)
NOBODY: Mapping[Gate, int] = {}


def id_of(number: int) -> JobId:
    return JobId(f"{number:026d}")


def new_job(number: int, **options: Any) -> NewJob:
    fields: dict[str, Any] = {"id": id_of(number), "kind": "count", "payload": "{}", "lease_us": LEASE_US}
    return NewJob(**fields | options)


def keyed_job(number: int, **options: Any) -> NewJob:
    return new_job(number, **{"key": "key-1", "fingerprint": "same", "key_keep_us": HOUR_US} | options)


class ContractWorker:
    """Claims under a new token each time, as real workers do."""

    _tokens = count(1)  # shared, because two workers of one name must not share a token

    def __init__(self, store: Store, name: str = "worker-1") -> None:
        self.store = store
        self.id = WorkerId(name)

    def wants(self, jobs: int = 1, queues: tuple[str, ...] = QUEUES, admits: Mapping[Gate, int] = NOBODY) -> Wants:
        admitted = tuple(Admit(gate, count) for gate, count in admits.items())
        return Wants(queues, jobs, Token(f"token-{next(self._tokens)}"), admitted)

    async def claim(
        self, jobs: int = 1, queues: tuple[str, ...] = QUEUES, admits: Mapping[Gate, int] = NOBODY
    ) -> tuple[Lease, ...]:
        return (await self.exchange(wants=self.wants(jobs, queues, admits))).leases

    async def claim_all(self, jobs: int, tenant: str | None = None) -> list[Lease]:
        """Claim so many jobs with as many exchanges as it takes: a service grants a bounded number at once."""
        leases: list[Lease] = []
        while len(leases) < jobs:
            wants = replace(self.wants(jobs - len(leases)), tenant=tenant)
            granted = (await self.exchange(wants=wants)).leases
            if not granted:
                break
            leases += granted
        return leases

    async def claim_one(self) -> Lease:
        (lease,) = await self.claim()
        return lease

    async def settle(self, *settlements: Settlement) -> ExchangeReply:
        return await self.exchange(*settlements)

    async def exchange(
        self, *settlements: Settlement, wants: Wants | None = None, repeat: bool = False
    ) -> ExchangeReply:
        return await self.store.jobs.exchange(Exchange(self.id, settlements, wants, repeat))


async def leased_job(store: Store, number: int = 1, **options: Any) -> Lease:
    """Submit a job and claim it with the default worker."""
    await store.jobs.submit([new_job(number, **options)])
    return await ContractWorker(store).claim_one()


# -- settlements ----------------------------------------------------------------------------------------------------

BROKEN = Failure("broken", "it broke", "Traceback: line 1")


def done(lease: Lease, **options: Any) -> Settlement:
    return settlement(lease, State.DONE, **{"result": '"well"'} | options)


def retry(lease: Lease, **options: Any) -> Settlement:
    return settlement(lease, State.PENDING, **{"failure": BROKEN} | options)


def snooze(lease: Lease, **options: Any) -> Settlement:
    return settlement(lease, State.PENDING, returns_attempt=True, **options)


def failed(lease: Lease, **options: Any) -> Settlement:
    return settlement(lease, State.FAILED, **{"failure": BROKEN} | options)


def cancelled(lease: Lease, **options: Any) -> Settlement:
    return settlement(lease, State.CANCELLED, **options)


def settlement(lease: Lease, state: State, **options: Any) -> Settlement:
    fields: dict[str, Any] = {"id": lease.id, "token": lease.token, "state": state}
    return Settlement(**fields | options)


def held(lease: Lease, **options: Any) -> HeldLease:
    fields: dict[str, Any] = {"id": lease.id, "token": lease.token, "lease_us": lease.lease_us}
    return HeldLease(**fields | options)


# -- observations ---------------------------------------------------------------------------------------------------


async def job_of(store: Store, number: int = 1) -> Job:
    job = await store.reads.job(id_of(number))
    assert job is not None, f"job {number} is not stored"
    return job


async def ids_in(store: Store) -> list[JobId]:
    """Every stored id, oldest first."""
    return [job.id for job in await store.reads.jobs(ALL, limit=1_000)][::-1]


async def counts(store: Store, queue: str = "default", tenant: str = "default", needs: str = "") -> dict[str, int]:
    """How many jobs of a lane are in which state; states without jobs are left out. An empty lane may be
    deleted."""
    name = (queue, tenant, needs)
    lane = next((lane for lane in await store.reads.lanes() if (lane.queue, lane.tenant, lane.needs) == name), None)
    if lane is None:
        return {}
    return {name: n for name in COUNTERS if (n := getattr(lane, name))}


COUNTERS = ("ready", "scheduled", "leased", "done", "failed", "cancelled")


async def conflict_of(submission: Awaitable[object]) -> str:
    """The message of the KeyConflict that this submission must raise."""
    try:
        await submission
    except KeyConflict as error:
        return str(error)
    raise AssertionError("a key was accepted that was used with other arguments before")
