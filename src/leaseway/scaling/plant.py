"""A model of a pool in virtual time: load ─► queue ─► limit ─► slots of workers, resized by a controller.

`leaseway scale simulate`, the closed-loop tests and the benchmark run it. One heap of events, one seeded stream of
random numbers: the same arguments give the same run, and an hour of load takes a fraction of a second.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.scaling.decision import ScalingDecision, ScalingState, decide_workers
from leaseway.domain.scaling.demand import AdmissionBound, PoolObservation, ScalingSettings, WorkGroup, check_between
from leaseway.domain.validators import check_int

RATE_SECONDS = 60.0
"""The window of measured rates."""
RATE_MAX = 1_000.0
HOURS_MAX = 48
START_SECONDS_MAX = 3_600.0
BURST = 2.0
"""The permits that the model's limit saves up."""

ARRIVAL, END, START, CONTROL = range(4)

Steps = Sequence[tuple[float, float]]
"""Values from a second on, in order: ((0, 1.0), (600, 5.0)) is 1 for ten minutes, then 5."""


class PlantSpec(Struct, frozen=True, kw_only=True):
    """What is simulated."""

    load: Steps = ((0.0, 1.0),)
    """Jobs per second."""
    limit: Steps = ((0.0, math.inf),)
    """Starts per second. 0: a budget that is spent."""
    seconds: float = 3_600.0
    backlog: int = 0
    """Jobs that wait at the beginning."""
    service_seconds: float = 2.0
    slots: int = 4
    start_seconds: float = 30.0
    """How long a new worker takes until it claims jobs."""
    workers: int = 1
    noise: float = 0.0
    """The error of the measured rate of arrivals, as a part of it."""
    stale: tuple[float, float] | None = None
    """Between these seconds the controller gets no new observation."""
    database_per_second: float = math.inf
    """What a saturated database serves, which the controller does not know."""
    feeds: float = math.inf
    """The slots that a limit feeds whose permits jobs take while they run: many calls each, so no rate bounds them."""
    phantom_slots: int = 0
    """Leases that count as busy slots although no job runs: of killed workers, or taken ahead."""
    period_seconds: float = 15.0
    seed: int = 0


class PlantSample(Struct, frozen=True):
    """The pool when the controller looked, and what it decided."""

    at: float
    workers: int
    ready: int
    running: int
    desired: int
    reason: str


class PlantReport(Struct, frozen=True, kw_only=True):
    samples: Sequence[PlantSample]
    waits: Sequence[float]
    """How long each started job waited, sorted."""
    worker_hours: float
    workers_max: int
    changes: int
    done: int
    left: int

    def wait(self, share: float) -> float:
        """A percentile of the waits. Jobs that never started are not counted."""
        return self.waits[min(int(share * len(self.waits)), len(self.waits) - 1)] if self.waits else 0.0


Controller = Callable[[PoolObservation, float], tuple[int, str]]
"""Gets an observation and the age of the oldest waiting job; returns the number of workers, and why."""


def law(settings: ScalingSettings) -> Controller:
    """leaseway's own controller."""
    state = ScalingState()

    def decide(seen: PoolObservation, oldest_seconds: float) -> tuple[int, str]:
        nonlocal state
        decision: ScalingDecision = decide_workers(seen, state, settings)
        state = decision.state
        return decision.workers, decision.reason

    return decide


def check_plant(spec: PlantSpec) -> PlantSpec:
    """Refuse a model that cannot run. The error names the field."""
    for name, steps, most in (("load", spec.load, RATE_MAX), ("limit", spec.limit, math.inf)):
        if not steps or steps[0][0] != 0 or [at for at, _ in steps] != sorted({at for at, _ in steps}):
            raise BadValue(name, "needs seconds that start at 0 and grow, for example 0:1,600:5")
        for _, value in steps:
            check_between(name, value, 0.0, most)
    check_between("seconds", spec.seconds, 1.0, HOURS_MAX * 3_600.0)
    check_between("service_seconds", spec.service_seconds, 0.001, 86_400.0)
    check_between("start_seconds", spec.start_seconds, 0.0, START_SECONDS_MAX)
    check_between("period_seconds", spec.period_seconds, 0.5, 3_600.0)
    check_between("noise", spec.noise, 0.0, 1.0)
    check_int("slots", spec.slots, 1, 10_000)
    check_int("backlog", spec.backlog, 0, 1_000_000)
    return spec


def value_at(steps: Steps, at: float) -> float:
    return steps[bisect_right(steps, (at, math.inf)) - 1][1]


class Plant:
    def __init__(self, spec: PlantSpec) -> None:
        self.spec = check_plant(spec)
        self.random = Random(spec.seed)
        self.noise = Random(spec.seed + 1)  # a controller's choices do not change the arrivals of another one
        self.at = 0.0
        self.events: list[tuple[float, int, int]] = []
        self.queue: deque[float] = deque([0.0] * spec.backlog)
        self.arrived: deque[float] = deque()
        self.ended: deque[float] = deque()
        self.live, self.starting, self.running, self.done = spec.workers, 0, 0, 0
        self.permits, self.permit_at = BURST, 0.0
        self.waits: list[float] = []
        self.samples: list[PlantSample] = []
        self.paid_seconds, self.workers_max, self.changes = 0.0, spec.workers, 0

    @property
    def workers(self) -> int:
        return self.live + self.starting

    def run(self, controller: Controller) -> PlantReport:
        self.push(0.0, CONTROL)
        self.push(self.next_arrival(), ARRIVAL)
        while self.events and self.events[0][0] <= self.spec.seconds:
            at, what, count = heappop(self.events)
            self.advance(at)
            if what == CONTROL:
                self.control(controller)
            elif what == ARRIVAL:
                self.arrive()
            elif what == START:
                self.live, self.starting = self.live + count, self.starting - count
            elif what == END:
                self.running, self.done = self.running - 1, self.done + 1
                self.ended.append(at)
            self.start_jobs()
        self.advance(self.spec.seconds)
        return PlantReport(
            samples=self.samples, waits=sorted(self.waits), worker_hours=self.paid_seconds / 3_600,
            workers_max=self.workers_max, changes=self.changes, done=self.done, left=len(self.queue),
        )  # fmt: skip

    def push(self, at: float, what: int, count: int = 1) -> None:
        heappush(self.events, (at, what, count))

    def advance(self, at: float) -> None:
        passed, limit = at - self.at, value_at(self.spec.limit, self.at)
        self.paid_seconds += passed * self.workers
        self.permits = math.inf if math.isinf(limit) else min(min(self.permits, BURST) + passed * limit, BURST)
        self.at = at

    # -- jobs --

    def next_arrival(self) -> float:
        """Thinning: arrivals of the largest rate, of which some are left out."""
        most = max(rate for _, rate in self.spec.load)
        at = self.at
        while most > 0 and at <= self.spec.seconds:
            at += self.random.expovariate(most)
            if self.random.random() * most < value_at(self.spec.load, at):
                return at
        return math.inf

    def arrive(self) -> None:
        self.queue.append(self.at)
        self.arrived.append(self.at)
        self.push(self.next_arrival(), ARRIVAL)

    def start_jobs(self) -> None:
        """Every job draws its service time when it starts, from a stream that depends on its number only."""
        while self.queue and self.running < self.live * self.spec.slots and self.permits >= 1:
            self.permits -= 1
            self.running += 1
            self.waits.append(self.at - self.queue.popleft())
            service = Random(self.spec.seed * 1_000_003 + len(self.waits)).expovariate(1 / self.spec.service_seconds)
            # A saturated database makes jobs wait for each other: more slots only make each of them slower.
            slowdown = max(1.0, self.running / self.spec.service_seconds / self.spec.database_per_second)
            slowdown = max(slowdown, self.running / self.spec.feeds)
            self.push(self.at + service * slowdown, END)
        limit = value_at(self.spec.limit, self.at)
        if self.queue and self.permits < 1 and limit > 0 and self.permit_at <= self.at:
            self.permit_at = self.at + (1 - self.permits) / limit + 1e-6
            self.push(self.permit_at, START, 0)

    # -- the controller --

    def control(self, controller: Controller) -> None:
        seen = self.observe()
        desired, reason = controller(seen, self.at - self.queue[0] if self.queue else 0.0)
        self.samples.append(PlantSample(self.at, self.workers, len(self.queue), self.running, desired, reason))
        self.resize(desired)
        self.push(self.at + self.spec.period_seconds, CONTROL)

    def observe(self) -> PoolObservation:
        limit = value_at(self.spec.limit, self.at)
        is_fed = self.running >= self.spec.feeds
        bound = AdmissionBound(
            what="limit" if limit else "budget", name="maps", starts_per_second=limit,
            fed_slots=self.running + self.spec.phantom_slots if is_fed else math.inf,
        )  # fmt: skip
        is_bound = is_fed or not math.isinf(limit)
        stale = self.spec.stale
        age = self.at - stale[0] if stale is not None and stale[0] <= self.at < stale[1] else 0.0
        arrivals = count_recent(self.arrived, self.at) * (1 + self.noise.uniform(-self.spec.noise, self.spec.noise))
        group = WorkGroup(
            ready=len(self.queue),
            running=self.running,
            arrivals_per_second=arrivals,
            service_seconds=self.spec.service_seconds,
            costs={str(bound): 1.0} if is_bound else {},
        )
        return PoolObservation(
            at=self.at,
            groups=(group,),
            bounds={str(bound): bound} if is_bound else {},
            finished_per_second=count_recent(self.ended, self.at),
            slots_per_worker=self.spec.slots,
            workers=self.workers,
            age_seconds=age,
        )

    def resize(self, desired: int) -> None:
        change = desired - self.workers
        self.changes += change != 0
        if change > 0:
            self.starting += change
            self.push(self.at + self.spec.start_seconds, START, change)
        elif change < 0:
            # A worker that drains takes no new job; its running jobs end on the slots that are left.
            self.live = max(self.live + change, 0)
        self.workers_max = max(self.workers_max, self.workers)


def count_recent(times: deque[float], now: float) -> float:
    """Events per second. A shorter history than the window counts as what it is."""
    while times and times[0] < now - RATE_SECONDS:
        times.popleft()
    return len(times) / min(RATE_SECONDS, max(now, 1.0))
