"""Watches every commit, every handler and every worker exit. The first violation ends the run."""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Protocol

from leaseway.domain.ids import SECOND_US, JobId
from leaseway.simulation import coverage
from leaseway.simulation.oracles import imbalances, wrongs
from leaseway.simulation.process import Process
from leaseway.simulation.promises import Commit, Promises, Run, StoredRows
from leaseway.worker.environment import WorkerSummary

TOLD_SECONDS_MAX = 1.0
"""A healthy worker tells a handler within this time that its lease is lost."""
LEAVE_SECONDS_MAX = 11.0
"""How long a drained worker may take beyond its grace period: two timeouts of five seconds, and some latency."""


class Watcher(Protocol):
    """Another observer of exchanges, in scenarios with limits and budgets."""

    def sent(self, verb: str, call: Any) -> None: ...

    def saw(self, commit: Commit) -> None: ...


class Judge:
    def __init__(self, books: Promises, table: StoredRows, stop: Callable[[], None]) -> None:
        self.books = books
        self.table = table
        self._stop = stop
        self.meter: Watcher | None = None

    def accuse(self, wrongs: Iterable[str]) -> None:
        for wrong in wrongs:
            self.books.violations.append(wrong)
            self._stop()

    # -- the store --------------------------------------------------------------------------------------------------

    def saw(self, commit: Commit) -> None:
        """Called after one call was executed and before anything else happens."""
        if commit.verb == "exchange":
            self.books.classify(commit)
        self.accuse(wrongs(self.books, commit))
        coverage.note(self.books, commit)
        if self.meter is not None and commit.verb == "exchange":
            self.meter.saw(commit)
        self.books.keep(commit)
        self.accuse(imbalances(self.books, commit, self.table))

    def sent(self, process: Process, verb: str, call: object) -> None:
        """I25: a draining worker claims no more jobs."""
        if self.meter is not None:
            self.meter.sent(verb, call)
        if verb == "exchange" and process.draining_at is not None:
            wants, repeat = getattr(call, "wants", None), getattr(call, "repeat", False)
            if wants is not None and not repeat:
                self.accuse([f"I25 {process.name} claims jobs after it was asked to leave"])

    # -- handlers ---------------------------------------------------------------------------------------------------

    def started(self, process: Process, job: JobId, fence: int, attempt: int) -> Run:
        """I1, I6: a lease is executed once, by the process that it was granted to, and not begun when it is over."""
        run = Run(process, job, fence, attempt, process.loop.time())
        if process.is_dead:
            return run  # the rest of its last instant, which no other process can observe
        book = self.books.jobs[job]
        grant = book.grants.get(fence)
        if grant is None or grant.process is not process:
            self.accuse([f"I1 {process.name} runs job {job} fence {fence}, which was not granted to it"])
        elif grant.ended_at is not None and not grant.was_taken_back:
            self.accuse([f"I1 {process.name} runs job {job} fence {fence}, which it had given back"])
        elif (over := run.started_at - grant.renewed_at - grant.lease_us / SECOND_US) >= 0:
            self.accuse([f"I1 {process.name} begins job {job} on a lease that ended {over:.3f} s ago"])
        if fence in book.runs:
            self.accuse([f"I1 job {job} fence {fence} runs twice"])
        book.runs[fence] = run
        return run

    def ended(self, run: Run, end: str) -> None:
        """I17: a handler soon learns that its lease is lost, unless its process had a fault."""
        run.end = end
        if run.process.is_dead:
            return
        grant = self.books.jobs[run.job].grants[run.fence]
        heard_at = run.process.loop.time() if run.heard_at is None else run.heard_at
        if not grant.was_taken_back or grant.ended_at is None:
            return
        self.books.reach("a handler outlived its lease")
        since = max(grant.ended_at, run.process.well_since(heard_at))
        if heard_at - since > TOLD_SECONDS_MAX:
            self.accuse([f"I17 {run.process.name} ran job {run.job} for {heard_at - since:.1f} s after it lost it"])

    # -- workers ----------------------------------------------------------------------------------------------------

    def left(self, process: Process, worked: WorkerSummary) -> None:
        """I25: a worker that exited in order holds no lease, and exited within bounded time."""
        assert process.worker is not None
        held = [row.id for row in self.table.rows.values() if row.owner == process.worker.id]
        # A worker that cannot renew in time stops a job shortly before the store takes it back.
        held = [job for job in held if self._end_of(job) not in ("lost", "LeaseLost")]
        if held and worked.is_clean:
            self.accuse([f"I25 {process.name} left and says it is clean, but holds {', '.join(held)}"])
        if process.draining_at is None:
            return
        seconds = process.loop.time() - process.draining_at
        most = process.grace_seconds + LEAVE_SECONDS_MAX
        if seconds > most and process.was_swift(process.draining_at, process.loop.time()):
            self.accuse([f"I25 {process.name} took {seconds:.1f} s to leave, and may take {most:.1f} s"])
        if not worked.is_clean:
            self.books.reach("a worker left in a hurry")

    def _end_of(self, job: JobId) -> str:
        book = self.books.jobs[job]
        run = book.runs.get(book.claims)
        return "" if run is None else run.end

    def died(self, process: Process, error: BaseException) -> None:
        if not process.is_dead:
            self.accuse([f"the worker of {process.name} ended with {error!r}"])


JUDGE: ContextVar[Judge] = ContextVar("JUDGE")
