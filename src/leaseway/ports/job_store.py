"""Where jobs are stored. One contract suite, `leaseway.testing.job_store_contract`, proves every implementation.

Promises that hold for every method:
- It is atomic: all of it happened, or nothing did.
- It can be repeated with the same arguments after a lost reply, without a second effect. A submission, a settlement
  and an exchange marked as a repeat return the first answer.
- The store's clock decides; callers pass durations.
- Acknowledged writes survive the death of every process.
- `TransientError`: nothing happened, or (`UnknownOutcome`) the outcome is unknown. The same call may be made again.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, HeldLease, ProgressReport, Renewed
from leaseway.domain.ids import JobId, Token
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import NewJob, Submitted


class JobStore(Protocol):
    """The methods that submitters and workers call for every job."""

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Store all of the jobs or none, and answer in their order.

        A job whose (tenant, key) is known is not stored: the answer names the first job if kind and arguments are
        the same; otherwise `KeyConflict` is raised. A job whose id is known was submitted before and is not stored
        again.
        """
        ...

    async def exchange(self, call: Exchange) -> ExchangeReply:
        """Settle, then claim, in one transaction.

        A settlement is accepted only if its token is the job's current token; otherwise the job is listed in `lost`
        and nothing of the settlement is written. A settlement that was accepted before is accepted again. Each call
        reclaims a bounded number of expired leases: the job becomes pending if attempts are left, failed with code
        `lease_expired` if not, and cancelled if cancellation was requested. A settlement does not make a job pending
        that is to be cancelled, either. A claim counts the attempt and raises the fence. Lanes share a claim by the
        weights of their tenants, the lane furthest behind first (`domain.lane`); within a lane the higher priority
        goes first, then the earlier `run_at`, then the earlier submission. A repeat receives the leases that the
        first try was granted, if any, and renews them; a repeat that wants no jobs receives only those.

        A lane is behind a gate if its jobs have requirements or its tenant has caps. It is served as far as `wants`
        admits, together with the other lanes behind the same gate. If jobs are wanted, the answer lists the gates of
        these queues behind which jobs are still ready.
        """
        ...

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        """Extend each lease by its length from now. A lease that has ended or expired is listed in `lost`."""
        ...

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        """Store the cursor, which outlives the attempt. False: the lease is lost or expired, nothing was written."""
        ...

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        """Store the progress of running jobs. Reports for lost leases are dropped."""
        ...

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        """Microseconds until an exchange for these queues may find work. 0: now. None: no work is planned.

        Ready jobs behind the closed gates do not count, and their number does not affect the cost of this call.
        """
        ...

    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        """Return `NewJob.trace` of each leased job that has one.

        Traces are read apart from leases, so that a worker without tracing does not pay for them.
        """
        ...


class JobOperations(Protocol):
    """The methods that operators and maintenance call."""

    async def cancel(self, job: JobId) -> CancelResult:
        """Cancel a pending job now, ask the worker of a leased job to stop, leave a finished job alone."""
        ...

    async def retry(self, which: JobFilter, limit: int) -> list[JobId]:
        """Make failed or cancelled jobs pending again with fresh attempts, at most `limit` of them.

        Their cursor stays, so they continue where they stopped.
        """
        ...

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        """Delete finished jobs permanently, at most `limit` of them."""
        ...

    async def prune(self, keep_us: int, limit: int) -> int:
        """Delete jobs that finished longer ago than `keep_us`, at most `limit`, and return their number.

        Expired idempotency keys are deleted as well, at most KEYS_PER_JOB times as many, since keys outlive jobs.
        """
        ...


class BlockingSubmission(Protocol):
    """Submission for callers without an event loop."""

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Do the same as `JobStore.submit`, in the caller's thread."""
        ...


class TransactionalSubmission(Protocol):
    """Submission for callers that have a transaction open in the same database."""

    async def submit(self, connection: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Do the same as `JobStore.submit`, as part of the transaction that is open on `connection`.

        The jobs exist if and only if that transaction commits. No notification is sent; workers find the jobs when
        they poll.
        """
        ...

    def submit_blocking(self, connection: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Do the same in the caller's thread, for connections that are not async."""
        ...
