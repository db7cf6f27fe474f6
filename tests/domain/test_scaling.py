"""The autoscaler's decision: within its bounds, never past what limits can feed, and never on old numbers."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.domain.scaling.decision import ScalingDecision, ScalingState, decide_workers
from leaseway.domain.scaling.demand import (
    AdmissionBound,
    PoolObservation,
    ScalingSettings,
    WorkGroup,
    check_scaling,
    fill_slots,
    workers_wanted,
)

SETTINGS = ScalingSettings(workers_min=0, workers_max=50)
MAPS = AdmissionBound(what="limit", name="maps", starts_per_second=1.0)

rates = st.floats(0, 100) | st.just(math.inf)
TENANTS = ("acme", "globex")


def bounds_with(maps: float, at_once: float, caps: list[float]) -> dict[str, AdmissionBound]:
    """One limit for all jobs, and a cap for each tenant: nested, as limits usually are."""
    made = [AdmissionBound(what="limit", name="maps", starts_per_second=maps, at_once=at_once)]
    made += [
        AdmissionBound(what="tenant", name=name, starts_per_second=cap)
        for name, cap in zip(TENANTS, caps, strict=True)
    ]  # fmt: skip
    return {str(bound): bound for bound in made}


groups = st.builds(
    WorkGroup,
    ready=st.integers(0, 10**5),
    running=st.integers(0, 500),
    arrivals_per_second=st.floats(0, 1e3),
    service_seconds=st.floats(0.01, 600),
    costs=st.sampled_from([{}, *({"limit maps": 1.0, f"tenant {name}": 1.0} for name in TENANTS)]),
)
bounds = st.builds(
    bounds_with, rates, st.just(math.inf) | st.integers(1, 100).map(float), st.lists(rates, min_size=2, max_size=2)
)
observations = st.builds(
    PoolObservation,
    at=st.floats(0, 1e5),
    groups=st.lists(groups, max_size=5).map(tuple),
    bounds=bounds,
    scheduled=st.integers(0, 2),
    finished_per_second=st.floats(0, 100),
    slots_per_worker=st.integers(1, 64),
    workers=st.integers(0, 60),
)


def decide(seen: PoolObservation, state: ScalingState | None = None, **options: Any) -> ScalingDecision:
    return decide_workers(seen, state or ScalingState(), replace(SETTINGS, **options))


def one_group(at: float = 0.0, workers: int = 1, *, limited: bool = False, **options: Any) -> PoolObservation:
    costs = {str(MAPS): 1.0} if limited else {}
    group = WorkGroup(**{"service_seconds": 2.0, "costs": costs, **options})
    return PoolObservation(at=at, groups=(group,), bounds={str(MAPS): MAPS}, slots_per_worker=4, workers=workers)


@settings(max_examples=150, deadline=None)
@given(observations, st.integers(0, 5), st.integers(5, 50))
def test_a_decision_stays_within_floor_and_ceiling(seen: PoolObservation, floor: int, ceiling: int) -> None:
    """A fleet beyond its ceiling takes the memory of the machine; one below its floor serves nobody."""
    decision = decide(seen, workers_min=floor, workers_max=ceiling)
    assert floor <= decision.workers <= ceiling
    assert decision.reason


@settings(max_examples=150, deadline=None)
@given(observations)
def test_a_step_up_is_bounded(seen: PoolObservation) -> None:
    """One wrong observation must not start fifty processes at once."""
    assert decide(seen).workers <= max(seen.workers + SETTINGS.up_step_workers, 2 * seen.workers)


@settings(max_examples=300, deadline=None)
@given(observations)
def test_growth_stops_at_what_limits_can_feed(seen: PoolObservation) -> None:
    """A worker that can only wait for a permit costs money and brings nothing."""
    limited = replace(seen, groups=tuple(group for group in seen.groups if group.costs))
    decision = decide(limited)
    if decision.workers > limited.workers:
        longest = max((group.service_seconds for group in limited.groups), default=0.01)
        maps = limited.bounds["limit maps"]
        fed = min(maps.starts_per_second * longest, maps.at_once)
        capacity = limited.slots_per_worker * SETTINGS.utilisation
        assert decision.workers <= max(1, fed / capacity + 1 + 1e-6)


@settings(max_examples=150, deadline=None)
@given(observations)
def test_no_bound_is_filled_beyond_its_rate(seen: PoolObservation) -> None:
    """Groups that share a limit must not each count on the whole of it."""
    for text, bound in seen.bounds.items():
        sharing = replace(seen, groups=tuple(group for group in seen.groups if text in group.costs))
        longest = max((group.service_seconds for group in sharing.groups), default=0.01)
        assert fill_slots(sharing, SETTINGS).slots <= min(bound.starts_per_second * longest, bound.at_once) + 1e-6


@settings(max_examples=150, deadline=None)
@given(observations, st.floats(61, math.inf))
def test_stale_numbers_change_nothing(seen: PoolObservation, age_seconds: float) -> None:
    """A store that does not answer must never read as an empty queue."""
    decision = decide(replace(seen, age_seconds=age_seconds))
    assert decision.workers == min(seen.workers, SETTINGS.workers_max)
    assert decision.cause == "stale"


@settings(max_examples=300, deadline=None)
@given(observations, st.integers(0, 4), st.integers(0, 10**5))
def test_more_backlog_never_wants_fewer_workers(seen: PoolObservation, which: int, more: int) -> None:
    """Otherwise a growing queue could shrink its own fleet."""
    larger = replace(seen, groups=tuple(
        replace(group, ready=group.ready + more) if number == which else group
        for number, group in enumerate(seen.groups)
    ))  # fmt: skip
    assert workers_wanted(larger, SETTINGS)[0] >= workers_wanted(seen, SETTINGS)[0]


def test_a_limit_that_binds_is_named() -> None:
    """An operator who sees a long queue and one worker must learn that more workers would not help."""
    decision = decide(one_group(limited=True, ready=3_600, running=2))
    assert (decision.workers, decision.cause) == (1, "limit")
    assert decision.reason == "limit maps binds: 1.0/s; 1 worker suffices"


def test_without_a_limit_the_backlog_decides() -> None:
    """The same queue without the limit is worked off within the target."""
    decision = decide(one_group(ready=3_600, running=2))
    assert (decision.workers, decision.cause) == (5, "maximum")
    assert decision.reason.startswith("0.0/s arrive, 3,600 wait: 720.0 busy slots; 225 workers suffice; the maximum")


def test_groups_share_a_limit_the_longest_jobs_first() -> None:
    """A permit for a long job keeps a slot busy for longer, so the limit may keep that many slots busy."""
    long = WorkGroup(ready=1_000, service_seconds=10.0, costs={str(MAPS): 1.0})
    short = WorkGroup(ready=1_000, service_seconds=1.0, costs={str(MAPS): 1.0})
    seen = PoolObservation(at=0, groups=(short, long), bounds={str(MAPS): MAPS})
    assert fill_slots(seen, SETTINGS).slots == pytest.approx(10.0)


def test_a_job_that_costs_more_permits_keeps_fewer_slots_busy() -> None:
    """A limit of 100 tokens per second starts ten jobs of 10 tokens, not a hundred."""
    tokens = AdmissionBound(what="limit", name="tokens", starts_per_second=100.0)
    group = WorkGroup(ready=1_000, service_seconds=2.0, costs={str(tokens): 10.0})
    seen = PoolObservation(at=0, groups=(group,), bounds={str(tokens): tokens})
    assert fill_slots(seen, SETTINGS).slots == pytest.approx(20.0)


@settings(max_examples=150, deadline=None)
@given(
    groups=st.lists(groups, min_size=1, max_size=5), fed=st.floats(0.5, 200), workers=st.integers(0, 60),
    slots=st.integers(1, 64),
)  # fmt: skip
def test_a_limit_that_is_used_up_feeds_no_more_slots_than_it_did(
    groups: list[WorkGroup], fed: float, workers: int, slots: int
) -> None:
    """More slots would only wait for permits, and make the jobs look longer, which would ask for more slots again."""
    maps = replace(MAPS, starts_per_second=1e6, fed_slots=fed)
    limited = tuple(replace(group, costs={"limit maps": 1.0}, running=0) for group in groups)
    seen = PoolObservation(
        at=0, groups=limited, bounds={"limit maps": maps}, slots_per_worker=slots, workers=workers
    )  # fmt: skip
    assert workers_wanted(seen, SETTINGS)[0] <= min(math.ceil(fed / slots), workers or math.inf)
    assert fill_slots(seen, SETTINGS).slots <= fed


def test_a_limit_that_is_used_up_is_the_reason() -> None:
    """Eight busy slots are two workers: without a reserve for chance, which would grow again with every decision."""
    maps = replace(MAPS, starts_per_second=1e6, fed_slots=8.0)
    group = WorkGroup(ready=1_000, running=8, service_seconds=5.0, costs={"limit maps": 1.0})
    seen = PoolObservation(at=0, groups=(group,), bounds={"limit maps": maps}, slots_per_worker=4, workers=2)
    decision = decide(seen)
    assert (decision.workers, decision.cause) == (2, "limit")
    assert decision.reason.startswith("limit maps binds")


def test_a_burst_of_long_jobs_needs_one_slot_each() -> None:
    """The rate of a burst, times a long service time, would ask for slots that no job could fill."""
    seen = one_group(ready=100, arrivals_per_second=100 / 60, service_seconds=600.0)
    assert 100 <= fill_slots(seen, SETTINGS).slots <= 201


def test_running_long_jobs_keep_their_workers() -> None:
    """Nothing arrives and nothing waits, but a drain would throw away work that has run for minutes."""
    seen = one_group(workers=5, running=20, service_seconds=600.0)
    assert decide(seen).workers == 5


def test_a_limit_fills_slots_of_long_jobs_gradually() -> None:
    """A limit of one start per second can keep 600 slots busy with jobs of 600 s, but not within the first minute."""
    seen = one_group(limited=True, ready=3_600, service_seconds=600.0)
    assert fill_slots(seen, SETTINGS).slots == pytest.approx(60.0)


def test_the_maximum_of_the_window_holds_a_fleet() -> None:
    """A load that comes back within three minutes must find its workers."""
    busy = decide(one_group(at=0, workers=5, arrivals_per_second=8.0))
    calm = decide(one_group(at=60, workers=5, arrivals_per_second=0.1), busy.state)
    assert (calm.workers, calm.reason.partition("held at ")[2]) == (5, "5: 5 workers needed 60 s ago")
    assert decide(one_group(at=181, workers=5, arrivals_per_second=0.1), calm.state).workers == 4


def test_the_last_worker_stays_until_the_pool_was_idle_for_long() -> None:
    """The next job of a trickle should not wait for a process to start."""
    first = decide(one_group(at=0, running=1))
    later = decide(one_group(at=299), first.state)
    assert (later.workers, later.cause) == (1, "idle")
    assert decide(one_group(at=300), later.state).workers == 0


def test_scheduled_jobs_keep_one_worker() -> None:
    """Only a worker starts a job whose time has come: without one, it would never be due."""
    first = decide(one_group(at=0, running=1))
    assert decide(replace(one_group(at=1_000), scheduled=1), first.state).workers == 1


def test_running_jobs_of_dead_workers_bring_one_worker() -> None:
    """Their leases expire, and a worker must be there to take them back."""
    assert decide(one_group(workers=0, running=3)).workers == 1


def test_growth_without_benefit_is_frozen_and_tried_again() -> None:
    """A limit that nobody declared, or a saturated database, must not fill the machine with workers that wait. Growth
    is tried again, and each time later."""
    state, workers, freezes = ScalingState(), 2, dict[float, float]()
    for at in range(0, 3_600, 15):
        seen = replace(one_group(at=at, workers=workers, ready=500, running=8), finished_per_second=1.0)
        decision = decide(seen, state, up_step_workers=1, up_step_ratio=0.0)
        if decision.state.frozen_until != state.frozen_until:
            freezes[at] = decision.state.frozen_until - at
        assert (decision.cause == "no_benefit") == (at < decision.state.frozen_until)
        state, workers = decision.state, decision.workers
    assert list(freezes.values()) == [300, 600, 1_200, 2_400]
    assert next(iter(freezes)) == 15 + SETTINGS.benefit_seconds
    assert workers == 2 + 2 + 3, "two steps before the first freeze, and one after each that is over"


def test_growth_with_benefit_goes_on() -> None:
    """A large backlog with a throughput that rises with every worker is what growth is for."""
    state, workers = ScalingState(), 1
    for at in range(0, 600, 15):
        seen = replace(one_group(at=at, workers=workers, ready=5_000, running=4), finished_per_second=2.0 * workers)
        decision = decide(seen, state, up_step_workers=1, up_step_ratio=0.0)
        state, workers = decision.state, decision.workers
        assert decision.cause != "no_benefit"
    assert workers > 30


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("min", {"workers_min": 3, "workers_max": 2}),
        ("min", {"workers_min": -1}),
        ("max", {"workers_max": 0}),
        ("utilisation", {"utilisation": 0}),
        ("utilisation", {"utilisation": math.nan}),
        ("wait_seconds", {"wait_seconds": -1}),
        ("down_window_seconds", {"down_window_seconds": math.inf}),
        ("down_step_ratio", {"down_step_ratio": 0}),
        ("up_step_workers", {"up_step_workers": 0}),
        ("stale_seconds", {"stale_seconds": "soon"}),
    ],
)
def test_impossible_settings_are_refused_by_name(field: str, options: dict[str, Any]) -> None:
    """A fleet that starts with such settings would hang or grow without a bound, hours later."""
    with pytest.raises(BadValue) as refused:
        check_scaling(replace(SETTINGS, **options))
    assert refused.value.field == field


def test_small_differences_are_left_alone() -> None:
    """A fleet of ten that becomes eleven and nine in turn only starts and ends processes."""
    little_more = decide(one_group(workers=10, arrivals_per_second=16.5))
    assert (little_more.wanted, little_more.workers) == (11, 10)
    assert decide(one_group(workers=10, arrivals_per_second=18.5)).workers == 12
    little_less = decide(one_group(at=1_000, workers=10, arrivals_per_second=13.5))
    assert (little_less.wanted, little_less.workers) == (9, 10)
    assert "within the tolerance" in little_more.reason
    assert "within the tolerance" in little_less.reason


def test_steps_in_one_direction_keep_their_distance() -> None:
    """The bound of a step means nothing if steps follow each other at every look."""
    first = decide(one_group(at=0, workers=1, ready=1_000))
    assert first.workers == 5
    second = decide(one_group(at=14, workers=5, ready=1_000), first.state)
    assert (second.workers, "the last step up was 14 s ago" in second.reason) == (5, True)
    assert decide(one_group(at=15, workers=5, ready=1_000), second.state).workers == 10
    down = decide(one_group(at=1_000, workers=20, arrivals_per_second=1.0))
    assert down.workers == 15
    later = decide(one_group(at=1_014, workers=15, arrivals_per_second=1.0), down.state)
    assert (later.workers, "the last step down was 14 s ago" in later.reason) == (15, True)
    assert decide(one_group(at=1_015, workers=15, arrivals_per_second=1.0), later.state).workers == 12


def test_a_pool_whose_jobs_end_between_two_looks_is_not_idle() -> None:
    """Neither waiting nor running jobs are seen, but jobs end: the last worker serves them."""
    first = decide(one_group(at=0, running=1))
    trickle = replace(one_group(at=400), finished_per_second=0.02)
    busy = decide(trickle, first.state)
    assert decide(one_group(at=500), busy.state).workers == 1
    assert decide(one_group(at=700), busy.state).workers == 0


def test_the_bounds_apply_to_a_fleet_that_is_outside_of_them() -> None:
    """After a restart with other bounds, the fleet follows them at once; the minimum comes before anything else."""
    assert decide(one_group(workers=0, ready=1_000), workers_min=3).workers == 3
    busy = decide(one_group(workers=20, arrivals_per_second=40.0), workers_max=10)
    assert busy.workers == 10


def test_a_benefit_is_judged_within_one_backlog_only() -> None:
    """Two steps of this morning say nothing about the burst of this afternoon."""
    state = ScalingState()
    for at in (0, 15):
        state = decide(replace(one_group(at=at, workers=2 + at, ready=500), finished_per_second=1.0), state).state
    state = decide(replace(one_group(at=60, workers=20), finished_per_second=1.0), state).state
    burst = decide(replace(one_group(at=600, workers=5, ready=500), finished_per_second=1.0), state)
    assert (burst.workers, burst.cause) == (10, "demand")


def test_a_spent_budget_does_not_end_workers_that_run_jobs() -> None:
    """Nothing can start, but eight jobs run on two workers, and a drain might interrupt them."""
    spent = AdmissionBound(what="budget", name="spend", starts_per_second=0.0)
    group = WorkGroup(ready=100, running=8, service_seconds=2.0, costs={str(spent): 1.0})
    seen = PoolObservation(at=0, groups=(group,), bounds={str(spent): spent}, slots_per_worker=4, workers=5)
    decision = decide(seen)
    assert (decision.wanted, decision.cause) == (2, "budget")
    assert decision.reason.startswith("budget spend binds: 0.0/s; 2 workers suffice")


def test_slots_of_long_jobs_are_not_free_for_the_backlog() -> None:
    """Fifty jobs of ten minutes run and fifty wait: the waiting ones need slots of their own."""
    seen = one_group(ready=50, running=50, service_seconds=600.0)
    assert fill_slots(seen, SETTINGS).slots == pytest.approx(99.2, abs=0.1)
