"""How the supervisors of one pool agree: agreement, fleet, observation ─► [decide for all ─► divide] ─► agreement

Every supervisor writes the same record by compare-and-set, so one of them decides for all fleets of the pool, and the
others take their share. A fleet that falls silent loses its share to the others. Nothing here reads a clock.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from leaseway.domain.scaling.decision import NEVER, ScalingDecision, ScalingState, clamp, decide_workers
from leaseway.domain.scaling.demand import WORKERS_MAX, PoolObservation, ScalingSettings

SILENT_SECONDS = 30.0
"""A fleet that has not written for this long has ended, and its workers have noticed it."""
LISTED_SECONDS = 120.0
"""How long fleets are shown after their last sign. An orchestrator asks every 15 to 30 seconds."""
FLEETS_MAX = 100
DECISIONS_MAX = 20
WorkerCount = Annotated[int, Meta(ge=0, le=WORKERS_MAX)]
"""Checked when a record is read. To share out the workers of a damaged one could take for ever."""


class FleetShare(Struct, frozen=True, kw_only=True):
    """One fleet of a pool. Times are in seconds, on the store's clock."""

    name: str
    workers: WorkerCount = 0
    """How many it should run."""
    live: WorkerCount | None = None
    """How many it runs; workers that drain are not counted. None: it does not know."""
    workers_min: WorkerCount
    workers_max: WorkerCount
    seen_at: float


class PastDecision(Struct, frozen=True, kw_only=True):
    at: float
    workers: int
    wanted: int
    cause: str
    reason: str


class PoolAgreement(Struct, frozen=True, kw_only=True):
    queues: tuple[str, ...] = ()
    slots: int = 1
    fleets: Annotated[tuple[FleetShare, ...], Meta(max_length=FLEETS_MAX)] = ()
    state: ScalingState = ScalingState()
    decided_at: float = NEVER
    ready: int = 0
    running: int = 0
    decisions: tuple[PastDecision, ...] = ()
    """The newest first. The same decision again is not one more."""

    def share(self, name: str) -> int:
        return next((fleet.workers for fleet in self.fleets if fleet.name == name), 0)

    @property
    def workers(self) -> int:
        return sum(fleet.workers for fleet in self.fleets)

    @property
    def last(self) -> PastDecision | None:
        return self.decisions[0] if self.decisions else None


_decode = msgspec.json.Decoder(PoolAgreement).decode


def parse_agreement(text: str) -> PoolAgreement:
    """A record that cannot be read counts as none: the next decision replaces it."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return PoolAgreement()


def format_agreement(agreement: PoolAgreement) -> str:
    return msgspec.json.encode(agreement).decode()


def join_fleets(agreement: PoolAgreement, mine: FleetShare) -> PoolAgreement:
    """Renew the entry of a fleet, which keeps its share, and leave out silent fleets. A fleet that is not known yet
    brings the workers that it runs."""
    others = [each for each in agreement.fleets if each.name != mine.name and is_heard(each, mine.seen_at)]
    known = any(each.name == mine.name for each in agreement.fleets)
    workers = agreement.share(mine.name) if known else mine.workers
    fleets = sorted([*others[: FLEETS_MAX - 1], replace(mine, workers=workers)], key=lambda each: each.name)
    return replace(agreement, fleets=tuple(fleets))


def is_heard(fleet: FleetShare, now: float) -> bool:
    return now - fleet.seen_at < SILENT_SECONDS


def list_fleets(agreement: PoolAgreement, now: float) -> PoolAgreement:
    """Without the fleets that have ended, for people."""
    fleets = [each for each in agreement.fleets if now - each.seen_at < LISTED_SECONDS]
    return replace(agreement, fleets=tuple(fleets))


def leave_fleets(agreement: PoolAgreement, name: str) -> PoolAgreement:
    return replace(agreement, fleets=tuple(each for each in agreement.fleets if each.name != name), decided_at=NEVER)


def agree(
    before: PoolAgreement, mine: FleetShare, seen: PoolObservation, settings: ScalingSettings, period_seconds: float
) -> PoolAgreement:
    """Join the pool, and decide for all of its fleets unless one of them did so within the period."""
    joined = join_fleets(before, mine)
    same = {each.name for each in before.fleets} == {each.name for each in joined.fleets}
    # A clock that was set back must not stop decisions.
    if same and 0 <= seen.at - before.decided_at < period_seconds:
        return joined
    together = replace(
        settings,
        workers_min=sum(fleet.workers_min for fleet in joined.fleets),
        workers_max=sum(fleet.workers_max for fleet in joined.fleets),
    )
    decision = decide_workers(replace(seen, workers=joined.workers), joined.state, together)
    return replace(
        joined,
        fleets=tuple(divide(joined.fleets, decision.workers)),
        state=decision.state,
        decided_at=seen.at,
        ready=seen.ready,
        running=seen.running,
        decisions=remember_decision(joined.decisions, decision, seen.at),
    )


def remember_decision(
    decisions: Sequence[PastDecision], decision: ScalingDecision, at: float
) -> tuple[PastDecision, ...]:
    new = PastDecision(
        at=at, workers=decision.workers, wanted=decision.wanted, cause=decision.cause, reason=decision.reason
    )
    if decisions and (decisions[0].workers, decisions[0].cause) == (new.workers, new.cause):
        return (replace(new, at=decisions[0].at), *decisions[1:])
    return (new, *decisions)[:DECISIONS_MAX]


def divide(fleets: Sequence[FleetShare], workers: int) -> list[FleetShare]:
    """Share the workers out with the fewest changes: the smallest share grows, the largest one shrinks."""
    found = [replace(each, workers=min(max(each.workers, each.workers_min), each.workers_max)) for each in fleets]
    while (missing := workers - sum(each.workers for each in found)) > 0:
        if not change_one(found, 1, min, lambda each: each.workers < each.workers_max):
            break
    for _ in range(-missing):
        if not change_one(found, -1, max, lambda each: each.workers > each.workers_min):
            break
    return found


def change_one(fleets: list[FleetShare], by: int, choose: Any, can_change: Callable[[FleetShare], bool]) -> bool:
    able = [index for index, each in enumerate(fleets) if can_change(each)]
    if not able:
        return False
    index = choose(able, key=lambda each: fleets[each].workers)
    fleets[index] = replace(fleets[index], workers=fleets[index].workers + by)
    return True


def first_workers(wanted: int, seen: PoolObservation, settings: ScalingSettings) -> int:
    """The assumed size of a pool whose workers were not counted yet. From zero, the first decision would end workers
    that are busy."""
    return clamp(max(wanted, -(-seen.running // seen.slots_per_worker)), settings)
