"""Where jobs live. One contract suite, `leaseway.testing.job_store_contract`, proves every implementation.

Promises that hold for every verb:
- It is atomic: all of it happened, or nothing did.
- It can be repeated with the same arguments after a lost reply, without a second effect; a submission, a settlement
  and an exchange marked as a repeat give the first answer.
- The store's clock decides; callers pass durations.
- What was acknowledged survives the death of every process.
- `TransientError`: nothing happened, or (`UnknownOutcome`) nobody knows; the same call may be made again.
"""

from collections.abc import Sequence
from typing import Protocol

from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.ids import JobId, Token
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import NewJob, Submitted


class JobStore(Protocol):
    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Store all of them or none, and answer in their order.

        A job whose (tenant, key) is known is not stored: the answer names the first job, if kind and arguments are
        the same; `KeyConflict` otherwise. A job whose id is known was submitted before: nothing is stored again.
        """
        ...

    async def exchange(self, call: Exchange) -> ExchangeReply:
        """Settle, then claim, in one transaction.

        A settlement counts only if its token is the job's current one; otherwise the job is named in `lost` and
        nothing of it is written. A settlement that was accepted before is accepted again. Expired leases are taken
        back on the way, a bounded number at a time: pending if attempts are left, failed with code `lease_expired`
        if not, cancelled if somebody asked for it; a job that is to be cancelled is not made pending by a settlement
        either. A claim counts the attempt and raises the fence. Lanes share a claim by the weights of their tenants,
        the one furthest behind first (`domain.lanes`); inside a lane the higher priority goes first, then the earlier
        `run_at`, then the earlier submission. A repeat is handed, and holds from now on, what the first try was
        granted, if that was anything; one that wants none is handed that and nothing else.

        A lane is behind a gate if its jobs need something or its tenant is capped. It is served as far as `wants`
        admits, together with the other lanes behind the same gate. Whoever wants jobs is told at the end behind which
        gates of these queues some are still ready.
        """
        ...

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        """Extend each lease by its length from now. A lease that has ended or lapsed is named in `lost`."""
        ...

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        """Store the cursor, which survives the attempt. False: the lease is lost or lapsed, nothing was written."""
        ...

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        """Store how far running jobs have come. Reports of lost leases are dropped."""
        ...

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        """Microseconds until an exchange for these queues may find something: 0 now, None nothing is planned.

        Jobs that are ready behind the closed gates do not count. However many they are, this look is all they cost.
        """
        ...

    async def cancel(self, job: JobId) -> CancelResult:
        """Cancel a pending job now, ask the worker of a leased one to stop, leave a finished one alone."""
        ...

    async def replay(self, which: JobFilter, limit: int) -> list[JobId]:
        """Make failed or cancelled jobs pending again with fresh attempts, at most `limit` of them.

        Their cursor stays, so that they go on where they stopped.
        """
        ...

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        """Delete finished jobs for good, at most `limit` of them."""
        ...

    async def prune(self, keep_us: int, limit: int) -> int:
        """Delete jobs that finished longer ago than this, at most `limit`, and expired keys, at most KEYS_PER_JOB times
        as many, since they outlive their jobs. How many jobs."""
        ...


class SubmitsNow(Protocol):
    """What a store may offer besides, to callers without an event loop."""

    def submit_now(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        """The same as `submit`, waiting in the caller's thread."""
        ...


class SubmitsWithin(Protocol):
    """What a store may offer besides, to callers who have a transaction of their own open in the same database."""

    async def submit_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        """The same as `submit`, as a part of the transaction that is open on the caller's connection: the jobs exist
        if and only if it commits. Nobody is woken; workers find them when they look."""
        ...

    def submit_within_now(self, connection: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        """The same, waiting in the caller's thread."""
        ...
