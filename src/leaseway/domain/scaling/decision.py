"""How many workers a pool should run now, and why: observation, state, settings ─► [damping] ─► decision

Damping keeps a noisy load from changing the fleet: tolerances, steps of a bounded size, a rolling maximum before the
fleet shrinks, and no growth that does not raise the throughput. Nothing here reads a clock.
"""

import math
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.scaling.demand import (
    AdmissionBound,
    BusySlots,
    PoolObservation,
    ScalingSettings,
    workers_wanted,
)

BENEFIT_STEPS = 2
"""How many steps up may fail to raise the throughput before growth is frozen."""
NEVER = -1e12
"""Seconds. Not infinity, which JSON cannot express."""
FREEZES_MAX = 5
"""A freeze lasts twice as long as the one before, up to this many times."""


class GrowthStep(Struct, frozen=True):
    at: float
    workers: int
    finished_per_second: float


class ScalingState(Struct, frozen=True, kw_only=True):
    """What a decision leaves for the next one."""

    wanted: tuple[tuple[float, int], ...] = ()
    """When how many workers were needed, within the window. Only entries that exceed all later ones are kept."""
    active_at: float | None = None
    """When there was work last."""
    up_at: float = NEVER
    down_at: float = NEVER
    steps: tuple[GrowthStep, ...] = ()
    """The steps up since the backlog last was small."""
    frozen_until: float = NEVER
    freezes: int = 0
    """How often growth was frozen since then."""


class ScalingDecision(Struct, frozen=True, kw_only=True):
    workers: int
    """How many workers should run now."""
    wanted: int
    """How many the load needs, before damping."""
    cause: str
    """demand, limit, budget, tenant, lane, minimum, maximum, idle, stale or no_benefit"""
    reason: str
    state: ScalingState


# -- damping ---------------------------------------------------------------------------------------------------------


def decide_workers(seen: PoolObservation, state: ScalingState, settings: ScalingSettings) -> ScalingDecision:
    if seen.age_seconds > settings.stale_seconds:
        return hold_stale(seen, state, settings)
    needed, busy = workers_wanted(seen, settings)
    wanted = clamp(needed, settings)
    cause, reason = explain_demand(seen, needed, busy)
    if wanted != needed:
        cause = "minimum" if wanted > needed else "maximum"
        reason = f"{reason}; the {cause} is {wanted}"
    decision = ScalingDecision(
        workers=wanted, wanted=needed, cause=cause, reason=reason, state=remember(seen, state, settings, wanted)
    )
    if wanted > seen.workers:
        return grow(seen, decision, settings)
    return shrink(seen, decision, settings) if wanted < seen.workers else decision


def hold_stale(seen: PoolObservation, state: ScalingState, settings: ScalingSettings) -> ScalingDecision:
    held = clamp(seen.workers, settings)
    age = "unknown" if math.isinf(seen.age_seconds) else f"{seen.age_seconds:.0f} s old"
    reason = f"the last observation is {age}; {count_workers(held)} held"
    return ScalingDecision(workers=held, wanted=held, cause="stale", reason=reason, state=state)


def clamp(workers: int, settings: ScalingSettings) -> int:
    return min(max(workers, settings.workers_min), settings.workers_max)


def remember(seen: PoolObservation, state: ScalingState, settings: ScalingSettings, wanted: int) -> ScalingState:
    since = seen.at - settings.down_window_seconds
    higher = tuple((at, count) for at, count in state.wanted if at > since and count > wanted)
    is_active = seen.running > 0 or seen.ready > 0 or seen.finished_per_second > 0 or state.active_at is None
    is_small = seen.ready <= seen.finished_per_second * settings.wait_seconds
    return replace(
        state,
        wanted=(*higher, (seen.at, wanted)),
        active_at=seen.at if is_active else state.active_at,
        steps=() if is_small else state.steps,
        freezes=0 if is_small else state.freezes,
    )


def grow(seen: PoolObservation, decision: ScalingDecision, settings: ScalingSettings) -> ScalingDecision:
    if seen.workers < settings.workers_min:  # the minimum comes first, and needs no measurement
        return replace(decision, workers=settings.workers_min)
    if seen.workers and decision.workers / seen.workers <= 1 + settings.up_tolerance:
        return hold(seen, decision, "within the tolerance")
    is_unproven = lacks_benefit(seen, decision.state, settings)
    if seen.at < decision.state.frozen_until or (
        is_unproven and seen.at - decision.state.up_at >= settings.benefit_seconds
    ):
        return freeze(seen, decision, settings)
    if is_unproven:
        return hold(seen, decision, "the last steps up have not raised the throughput yet")
    if seen.at - decision.state.up_at < settings.step_seconds:
        return hold(seen, decision, f"the last step up was {seen.at - decision.state.up_at:.0f} s ago")
    ratio = 0.0 if decision.state.freezes else settings.up_step_ratio  # after a freeze, growth is tried with care
    step = max(settings.up_step_workers, math.ceil(seen.workers * ratio))
    workers = min(decision.workers, seen.workers + step)
    steps = (*decision.state.steps, GrowthStep(seen.at, seen.workers, seen.finished_per_second))[-BENEFIT_STEPS:]
    state = replace(decision.state, up_at=seen.at, steps=steps)
    note = "" if workers == decision.workers else f"; growing to {workers} first"
    return replace(decision, workers=workers, reason=f"{decision.reason}{note}", state=state)


def lacks_benefit(seen: PoolObservation, state: ScalingState, settings: ScalingSettings) -> bool:
    """The last steps up have not raised the throughput by the expected part of the growth."""
    if len(state.steps) < BENEFIT_STEPS:
        return False
    before = state.steps[-BENEFIT_STEPS]
    growth = seen.workers / max(before.workers, 1) - 1
    return seen.finished_per_second <= before.finished_per_second * (1 + settings.benefit_ratio * growth)


def freeze(seen: PoolObservation, decision: ScalingDecision, settings: ScalingSettings) -> ScalingDecision:
    """After the freeze, growth is tried again by one step."""
    state = decision.state
    if seen.at >= state.frozen_until:
        until = seen.at + settings.freeze_seconds * 2 ** min(state.freezes, FREEZES_MAX)
        state = replace(state, frozen_until=until, steps=state.steps[-1:], freezes=state.freezes + 1)
    reason = (
        f"more workers did not raise the throughput of {seen.finished_per_second:.1f}/s; growth is frozen for "
        f"{state.frozen_until - seen.at:.0f} s. Look for a limit that is not declared, or for a saturated database"
    )
    return replace(decision, workers=seen.workers, cause="no_benefit", reason=reason, state=state)


def shrink(seen: PoolObservation, decision: ScalingDecision, settings: ScalingSettings) -> ScalingDecision:
    if seen.workers > settings.workers_max:  # the maximum needs no measurement
        return replace(decision, workers=max(decision.workers, settings.workers_max))
    at, recently = max(decision.state.wanted, key=lambda entry: entry[1])
    if recently >= seen.workers:
        return hold(seen, decision, f"{count_workers(recently)} needed {seen.at - at:.0f} s ago")
    if recently and recently / seen.workers >= 1 - settings.down_tolerance:
        return hold(seen, decision, "within the tolerance")
    if seen.at - decision.state.down_at < settings.step_seconds:
        return hold(seen, decision, f"the last step down was {seen.at - decision.state.down_at:.0f} s ago")
    step = max(1, math.floor(seen.workers * settings.down_step_ratio))
    workers = max(recently, seen.workers - step)
    idle = seen.at - (seen.at if decision.state.active_at is None else decision.state.active_at)
    if workers == 0 and idle < settings.idle_seconds and not is_starved(seen):
        return replace(
            hold(seen, decision, f"idle for {idle:.0f} of {settings.idle_seconds:.0f} s"), workers=1, cause="idle"
        )
    note = "" if workers == decision.workers else f"; shrinking to {workers} first"
    state = replace(decision.state, down_at=seen.at)
    return replace(decision, workers=workers, reason=f"{decision.reason}{note}", state=state)


def is_starved(seen: PoolObservation) -> bool:
    """Jobs wait, and none of them can start: waiting longer for work does not help."""
    return seen.ready > 0 and not seen.running


def hold(seen: PoolObservation, decision: ScalingDecision, why: str) -> ScalingDecision:
    return replace(decision, workers=seen.workers, reason=f"{decision.reason}; held at {seen.workers}: {why}")


# -- reasons ---------------------------------------------------------------------------------------------------------


def explain_demand(seen: PoolObservation, needed: int, busy: BusySlots) -> tuple[str, str]:
    """The cause and the reason of what is needed, before damping."""
    enough = f"{count_workers(needed)} {'suffices' if needed == 1 else 'suffice'}"
    if busy.binding is not None:
        return busy.binding.what, f"{busy.binding} binds: {bound_text(busy.binding)}; {enough}"
    if not seen.ready and not seen.running and not busy.slots:
        later = (
            f"no work before {seen.scheduled:,} scheduled jobs or schedules are due" if seen.scheduled else "no work"
        )
        return "idle", f"{later}; {enough}"
    arrivals = sum(group.arrivals_per_second for group in seen.groups)
    return "demand", f"{arrivals:.1f}/s arrive, {seen.ready:,} wait: {busy.slots:.1f} busy slots; {enough}"


def bound_text(bound: AdmissionBound) -> str:
    rate, at_once = bound.starts_per_second, bound.at_once
    texts = chain(
        () if math.isinf(rate) else (f"{rate:.1f}/s" if rate >= 0.1 or not rate else f"{rate:.2g}/s",),
        () if math.isinf(at_once) else (f"{at_once:,.0f} at once",),
    )
    return ", ".join(texts)


def count_workers(count: int) -> str:
    return f"{count:,} worker{'' if count == 1 else 's'}"
