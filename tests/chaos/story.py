"""Hand-made histories: what the processes would have recorded, and what the store would contain."""

from collections import Counter
from typing import Any

from chaos import history
from chaos.evidence import Evidence, gathered
from chaos.stored import Stored, StoredJob
from chaos.verdict import Verdict, judged

from leaseway.domain.lane import LaneCount

LEASE_SECONDS = 3.0
EAST, WEST, SUBMITTER = "worker-east", "worker-west", "submitter"
STATES = ("done", "failed", "cancelled", "leased")


class Story:
    """Two workers and a submitter. Times are seconds from the start of the history."""

    def __init__(self) -> None:
        self.lines: list[history.Line] = []
        self.jobs: dict[str, StoredJob] = {}
        self.miscounted = 0
        for name in (EAST, WEST, SUBMITTER):
            self.started(name, 0.0)

    def says(self, by: str, record: history.AnyRecord) -> None:
        self.lines.append((by, record))

    # -- the supervisor ---------------------------------------------------------------------------------------------

    def started(self, name: str, at: float, loaded: float | None = None) -> None:
        self.says("supervisor", history.ProcessStarted(at=at, name=name, role=name.split("-")[0]))
        self.says(name, history.Loaded(at=at if loaded is None else loaded))

    def ended(self, name: str, at: float, code: int = -9, *, is_wanted: bool = True) -> None:
        self.says("supervisor", history.ProcessEnded(at=at, name=name, code=code, is_wanted=is_wanted))

    def fault(self, fault: str, hits: list[str], began: float, ended: float) -> None:
        number = 1 + sum(isinstance(record, history.FaultBegan) for _, record in self.lines)
        self.says("supervisor", history.FaultBegan(at=began, number=number, fault=fault, hits=hits, what="by hand"))
        self.says("supervisor", history.FaultEnded(at=ended, number=number))

    # -- submitting -------------------------------------------------------------------------------------------------

    def asked(self, call: str, *labels: str, at: float = 0.1, key: str | None = None) -> None:
        kinds = ["quick"] * len(labels)
        self.says(SUBMITTER, history.Submitting(at=at, call=call, labels=list(labels), kinds=kinds, key=key))

    def acknowledged(self, call: str, *jobs: str, at: float = 0.2) -> None:
        self.says(SUBMITTER, history.Acknowledged(at=at, call=call, jobs=list(jobs)))

    def refused(self, call: str) -> None:
        self.says(SUBMITTER, history.Refused(at=0.2, call=call, error="busy"))

    def unknown(self, call: str) -> None:
        self.says(SUBMITTER, history.Unknown(at=0.2, call=call, error="lost"))

    def submitted(self, job: str, at: float = 0.1) -> None:
        """Acknowledged under a label that is the job's own name."""
        self.asked(f"call of {job}", job, at=at)
        self.acknowledged(f"call of {job}", job, at=at + 0.1)

    # -- working ----------------------------------------------------------------------------------------------------

    def granted(self, by: str, job: str, fence: int, at: float, token: str | None = None) -> None:
        grant = history.Granted(job, token or token_of(fence), fence, LEASE_SECONDS)
        self.says(by, history.Exchanged(at=at, sent=at - 0.01, granted=[grant]))

    def ran(
        self, by: str, job: str, fence: int, start: float, end: float | None, how: str = "done", at: int = 0
    ) -> None:
        self.says(by, history.Started(at=start, job=job, kind="quick", fence=fence, attempt=fence, cursor=at))
        if end is not None:
            self.says(by, history.Ended(at=end, job=job, fence=fence, how=how))

    def settled(
        self, by: str, job: str, fence: int, at: float, state: str = "done", *, is_accepted: bool = True
    ) -> None:
        said = history.Settled(job, token_of(fence), state, at - 0.01, is_accepted)
        self.says(by, history.Exchanged(at=at, sent=at - 0.01, settled=[said]))

    def renewed(self, by: str, job: str, fence: int, at: float) -> None:
        self.says(by, history.Renewed(at=at, sent=at - 0.01, kept=[(job, token_of(fence))]))

    def checkpointed(self, by: str, job: str, fence: int, at: float, cursor: int, *, is_kept: bool = True) -> None:
        token, sent = token_of(fence), at - 0.01
        told = history.Checkpointed(at=at, job=job, token=token, cursor=cursor, sent=sent, is_kept=is_kept)
        self.says(by, told)

    def worked(self, by: str, job: str, fence: int, start: float, end: float) -> None:
        """Granted, run, done, accepted."""
        self.granted(by, job, fence, start)
        self.ran(by, job, fence, start + 0.01, end)
        self.settled(by, job, fence, end + 0.05)

    def done(self, job: str, at: float = 1.0, by: str = EAST) -> None:
        """A complete job without any fault."""
        self.submitted(job)
        self.worked(by, job, 1, at, at + 0.1)
        self.stored(job)

    # -- the end ----------------------------------------------------------------------------------------------------

    def stored(self, job: str, fence: int = 1, state: str = "done", label: str | None = None) -> None:
        result = fence if state == "done" else 0
        name = job if label is None else label
        self.jobs[job] = StoredJob(id=job, kind="quick", state=state, fence=fence, label=name, result_fence=result)

    def evidence(self) -> Evidence:
        counted = Counter(job.state for job in self.jobs.values())
        counts: dict[str, Any] = {state: counted[state] for state in STATES}
        lane = LaneCount(
            queue="default", tenant="default", ready=counted["pending"] + self.miscounted, scheduled=0, **counts
        )
        return gathered(self.lines, Stored(self.jobs, [lane]))

    def verdict(self) -> Verdict:
        return judged(self.evidence())


def token_of(fence: int) -> str:
    return f"token-{fence}"
