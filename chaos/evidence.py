"""The history, indexed for the rules: by submission, by job, by process, by fault.

A *grant* is a lease as the worker received it; a *run* is a handler that executes under it. The store acted at some
time between the sending of a call and its reply, so every rule uses the end of that interval that cannot produce a
false accusation.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos import history
from chaos.stored import Stored


@dataclass
class Call:
    """One try to submit."""

    by: str
    sent: history.Submitting
    acknowledged: history.Acknowledged | None = None
    refused: history.Refused | None = None
    unknown: history.Unknown | None = None


@dataclass
class Grant:
    process: str
    job: str
    token: str
    fence: int
    lease_seconds: float
    asked: float
    granted: float
    kept: float
    """When the last renewal was sent that succeeded; at first, when the claim was sent."""

    @property
    def lasts_until(self) -> float:
        """The store cannot consider the lease ended before this, except by a settlement."""
        return self.kept + self.lease_seconds


@dataclass
class Run:
    process: str
    job: str
    fence: int
    kind: str
    cursor: int
    started: float
    ended: float = math.inf
    how: str = ""


@dataclass
class Settlement:
    process: str
    answered: float
    said: history.Settled


@dataclass
class Process:
    name: str
    role: str
    started: float
    loaded: float = math.inf
    """When it had loaded its code: on a busy machine that takes long, and it can recover from nothing before."""
    ended: float = math.inf
    code: int | None = None
    is_wanted: bool = False


@dataclass
class Struck:
    """A fault, from its first to its last moment."""

    number: int
    fault: str
    hits: list[str]
    what: str
    began: float
    ended: float = math.inf

    def touches(self, process: str, start: float, end: float, after_seconds: float = 0.0) -> bool:
        """Whether the fault may have affected the process in this time; effects may last for a while after it."""
        return process in self.hits and self.began <= end and start <= self.ended + after_seconds


@dataclass
class Evidence:
    stored: Stored
    calls: dict[str, Call] = field(default_factory=dict)
    grants: dict[str, list[Grant]] = field(default_factory=lambda: defaultdict(list))
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    settlements: dict[str, list[Settlement]] = field(default_factory=lambda: defaultdict(list))
    checkpoints: dict[str, list[history.Checkpointed]] = field(default_factory=lambda: defaultdict(list))
    cancellings: dict[str, list[str | None]] = field(default_factory=lambda: defaultdict(list))
    """The replies to cancellations of a job; None: no reply."""
    processes: dict[str, Process] = field(default_factory=dict)
    faults: dict[int, Struck] = field(default_factory=dict)
    heard: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    left: int = 0
    repeats: int = 0

    def __post_init__(self) -> None:
        self._by_token: dict[tuple[str, str], Grant] = {}
        self._running: dict[tuple[str, str, int], Run] = {}

    # -- queries ---------------------------------------------------------------------------------------------------

    def run_of(self, grant: Grant) -> Run | None:
        return self._running.get((grant.process, grant.job, grant.fence))

    def grant_of(self, job: str, token: str) -> Grant | None:
        return self._by_token.get((job, token))

    def grant_behind(self, run: Run) -> Grant | None:
        found = (each for each in self.grants[run.job] if (each.process, each.fence) == (run.process, run.fence))
        return next(found, None)

    def end_of(self, run: Run) -> float:
        """When the handler had certainly stopped: because it ended, or because its process did."""
        return min(run.ended, self.processes[run.process].ended)

    def is_disturbed(self, process: str, start: float, end: float, after_seconds: float) -> bool:
        return any(fault.touches(process, start, end, after_seconds) for fault in self.faults.values())

    # -- indexing --------------------------------------------------------------------------------------------------

    def take(self, by: str, record: history.AnyRecord) -> None:
        match record:
            case history.Submitting():
                self.calls[record.call] = Call(by, record)
            case history.Acknowledged():
                self.calls[record.call].acknowledged = record
            case history.Refused():
                self.calls[record.call].refused = record
            case history.Unknown():
                self.calls[record.call].unknown = record
            case history.Cancelling():
                self.cancellings[record.job].append(None)
            case history.Cancelled():
                self.cancellings[record.job][-1] = record.answer
            case history.Heard():
                self.heard[record.name] += 1
            case history.Loaded():
                self.processes[by].loaded = record.at
            case _:
                self._take_of_work(by, record)

    def _take_of_work(self, by: str, record: history.AnyRecord) -> None:
        match record:
            case history.Exchanged():
                self._take_exchange(by, record)
            case history.Renewed():
                self._take_renewal(record)
            case history.Checkpointed():
                self.checkpoints[record.job].append(record)
            case history.Started(job=job, fence=fence):
                run = Run(by, job, fence, record.kind, record.cursor, record.at)
                self.runs[job].append(run)
                self._running[by, job, fence] = run
            case history.Ended():
                run = self._running[by, record.job, record.fence]
                run.ended, run.how = record.at, record.how
            case _:
                self._take_of_supervisor(record)

    def _take_of_supervisor(self, record: history.AnyRecord) -> None:
        match record:
            case history.ProcessStarted(name=name):
                self.processes[name] = Process(name, record.role, record.at)
            case history.ProcessEnded(name=name):
                process = self.processes[name]
                process.ended, process.code, process.is_wanted = record.at, record.code, record.is_wanted
            case history.FaultBegan(number=number):
                self.faults[number] = Struck(number, record.fault, record.hits, record.what, record.at)
            case history.FaultEnded():
                self.faults[record.number].ended = record.at
            case history.Drained():
                self.left = record.left

    def _take_exchange(self, by: str, record: history.Exchanged) -> None:
        self.repeats += record.is_repeat
        for each in record.granted:
            known = self._by_token.get((each.job, each.token))
            if known is None or (known.process, known.fence) != (by, each.fence):
                grant = Grant(
                    by, each.job, each.token, each.fence, each.lease_seconds, record.sent, record.at, record.sent
                )
                self.grants[each.job].append(grant)
                self._by_token[each.job, each.token] = grant
        for said in record.settled:
            self.settlements[said.job].append(Settlement(by, record.at, said))

    def _take_renewal(self, record: history.Renewed) -> None:
        for job, token in record.kept:
            grant = self._by_token.get((job, token))
            if grant is not None:
                grant.kept = max(grant.kept, record.sent)


def gathered(lines: Iterable[history.Line], stored: Stored) -> Evidence:
    evidence = Evidence(stored)
    supervised = sorted(lines, key=lambda line: line[1].at)
    for by, record in supervised:
        evidence.take(by, record)
    for grants in evidence.grants.values():
        grants.sort(key=lambda grant: (grant.fence, grant.granted))
    for runs in evidence.runs.values():
        runs.sort(key=lambda run: (run.fence, run.started))
    return evidence
