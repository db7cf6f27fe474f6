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
        again; if the known job belongs to another tenant, `IdConflict` is raised. Both rules hold for children of
        settlements and for jobs of schedules, too, but a conflicting key is no error there.
        """
        ...

    async def exchange(self, call: Exchange) -> ExchangeReply:
        """Settle, then claim, in one transaction.

        A settlement is accepted only if its token is the job's current token; otherwise the job is listed in `lost`
        and nothing of the settlement is written. A settlement that was accepted before is accepted again. Each call
        reclaims a bounded number of expired leases: the job becomes pending if attempts are left, failed with code
        `lease_expired` if not, and cancelled if cancellation was requested. It also makes a bounded number of scheduled
        jobs ready whose time has come. If there are more, lanes take turns, so that a tenant with very many of them
        delays the others by a few calls at most. A settlement does not make a job pending
        that is to be cancelled, either. A claim counts the attempt and raises the fence. Tenants share a claim by
        weight, the one furthest behind first, and the lanes of a tenant equally (`domain.lane`); within a lane the
        higher priority goes first, then the earlier `run_at`, then the earlier submission. A repeat receives the
        leases that the first try was granted, if any, and renews them; a repeat that wants no jobs receives only those.
        A service grants at most `GRANT_MAX` leases at once.

        A lane is behind a gate if its jobs have requirements or its tenant has caps. It is served as far as `wants`
        admits, together with the other lanes behind the same gate. If jobs are wanted, the answer lists the gates of
        these queues behind which jobs are still ready, tenants in turn. A gate that `wants` closes is not listed to
        any worker until its time has come; the number of closed lanes does not affect the cost of this call.
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

        Ready jobs behind the closed gates and in closed lanes do not count, and their number does not affect the cost
        of this call. `closed`: gates that this worker tries by itself.
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

    async def run_now(self, which: JobFilter, limit: int) -> list[JobId]:
        """Make pending jobs ready that wait for their time to run, at most `limit` of them.

        Their attempts stay as they are.
        """
        ...

    async def open_lanes(self, name: str, limit: int, tenant: str | None = None) -> int:
        """Open lanes that a worker has closed and whose needs name this limit or budget, at most `limit` of them, and
        return their number. A worker asks for a permit or the budget again.

        `name`: of a definition or of one of its instances. `tenant`: only the lanes of this tenant.
        """
        ...

    async def discard(self, which: JobFilter, limit: int) -> list[JobId]:
        """Delete finished jobs permanently, at most `limit` of them."""
        ...

    async def prune(self, keep_us: int, limit: int) -> int:
        """Delete jobs that finished longer ago than `keep_us`, at most `limit`, and return their number.

        Expired idempotency keys are deleted as well, at most KEYS_PER_JOB times as many, since keys outlive jobs; and
        at most `limit` lanes that have no job left. A lane is created again with its next job.
        """
        ...


class BlockingSubmission(Protocol):
    """Submission for callers without an event loop."""

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Do the same as `JobStore.submit`, in the caller's thread."""
        ...


class TransactionalSubmission(Protocol):
    """Submission for callers that have a transaction open in the same database."""

    async def submit(self, connection: object, jobs: Sequence[NewJob], *, notify: bool = True) -> list[Submitted]:
        """Do the same as `JobStore.submit`, as part of the transaction that is open on `connection`.

        The jobs exist if and only if that transaction commits. A connection without a transaction is refused.
        `notify`: workers are notified by that commit; otherwise they find the jobs when they poll.
        """
        ...

    def submit_blocking(self, connection: object, jobs: Sequence[NewJob], *, notify: bool = True) -> list[Submitted]:
        """Do the same in the caller's thread, for connections that are not async."""
        ...
