"""The controller in a loop with a modelled pool, in virtual time: it settles, and it does not swing."""

import math
from itertools import pairwise

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.domain.scaling.demand import ScalingSettings
from leaseway.scaling.plant import Plant, PlantReport, PlantSpec, Steps, law

SETTINGS = ScalingSettings(workers_min=0, workers_max=50)
BURST: Steps = ((0.0, 1.0), (600.0, 5.0), (1_800.0, 1.0))
RAMP: Steps = tuple((minute * 60.0, 1 + minute / 5) for minute in range(60))
SEEDS = range(3)


def run(settings: ScalingSettings = SETTINGS, **options: object) -> PlantReport:
    return Plant(replace(PlantSpec(), **options)).run(law(settings))


def workers_between(report: PlantReport, begin: float, end: float) -> list[int]:
    return [sample.workers for sample in report.samples if begin <= sample.at < end]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_of_the_load_settles(seed: int) -> None:
    """Five times the load: workers for it within minutes, a bounded overshoot for the backlog, and few changes."""
    report = run(load=BURST, seed=seed)
    assert set(workers_between(report, 1_200, 1_800)) <= {3, 4, 5, 6}
    assert report.workers_max <= 12
    assert report.changes <= 20
    assert report.wait(0.95) <= 5.0
    assert workers_between(report, 3_000, 3_600)[-1] <= 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ramp_is_followed(seed: int) -> None:
    """The fleet grows with the load, so that jobs do not wait for it."""
    report = run(load=RAMP, seed=seed)
    assert report.wait(0.95) <= 5.0
    assert report.changes <= 20
    needed = math.ceil(RAMP[-1][1] * 2 / 4 / 0.8)
    assert report.workers_max <= needed + 4


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_does_not_swing_the_fleet(seed: int) -> None:
    """Each change starts or drains a process; forty percent of noise is no reason for one a minute."""
    report = run(load=((0.0, 3.0),), noise=0.4, seed=seed)
    assert report.changes <= 20
    assert report.workers_max <= 7


@pytest.mark.parametrize("seed", SEEDS)
def test_a_limit_keeps_the_fleet_small_at_the_same_throughput(seed: int) -> None:
    """The reason for the whole controller: 3,600 jobs behind a limit of one per second."""
    behind = PlantSpec(load=((0.0, 0.0),), limit=((0.0, 1.0),), backlog=3_600, seed=seed)
    report, fixed = Plant(behind).run(law(SETTINGS)), Plant(replace(behind, workers=50)).run(lambda seen, _: (50, ""))
    assert report.workers_max <= 2
    assert report.done >= 0.98 * fixed.done
    assert report.samples[100].reason.startswith("limit maps binds: 1.0/s; 1 worker suffices")


def test_a_limit_that_comes_and_goes_moves_the_fleet_once_each_time() -> None:
    """The provider throttles for twenty minutes: the workers leave, and come back when they have work."""
    report = run(load=((0.0, 6.0),), limit=((0.0, math.inf), (1_200.0, 1.0), (2_400.0, math.inf)))
    assert max(workers_between(report, 1_800, 2_400)) <= 2
    assert max(workers_between(report, 2_400, 2_700)) >= 8
    assert report.changes <= 30


@pytest.mark.parametrize("phantom_slots", [0, 4, 16])
def test_leases_that_are_no_busy_slots_do_not_grow_a_fleet_at_its_limit(phantom_slots: int) -> None:
    """A limit feeds 12 slots of jobs that make many calls. Every killed worker leaves leases that look like busy slots;
    a controller that believes them adds a worker, whose leases look like more of them."""
    gently = replace(SETTINGS, up_step_workers=1, up_step_ratio=0.0)
    behind = {"load": ((0.0, 0.0),), "backlog": 3_600, "feeds": 12.0, "start_seconds": 5.0, "seconds": 300.0}
    report = run(gently, **behind, phantom_slots=phantom_slots)
    assert report.workers_max == 3
    assert report.samples[-1].reason.startswith("limit maps binds")


def test_a_spent_budget_ends_the_workers_and_a_new_window_starts_them() -> None:
    """No worker is paid to wait for midnight, and the backlog of the night does not start the ceiling at once."""
    report = run(load=((0.0, 3.0),), limit=((0.0, math.inf), (600.0, 0.0), (2_400.0, 20.0)))
    assert set(workers_between(report, 1_500, 2_400)) == {0}
    assert report.samples[100].reason.startswith("budget maps binds: 0.0/s; 0 workers suffice")
    after = workers_between(report, 2_400, 2_500)
    assert all(later - earlier <= max(4, earlier) for earlier, later in pairwise(after))
    assert report.workers_max <= 13


def test_a_cold_start_does_not_order_workers_twice() -> None:
    """Workers that start count as present; otherwise each decision within these 30 s would order them again."""
    slow, fast = run(load=BURST, start_seconds=30.0), run(load=BURST, start_seconds=1.0)
    assert slow.workers_max <= 2 * fast.workers_max


def test_a_store_that_does_not_answer_holds_the_fleet() -> None:
    """Twenty minutes without an observation: the workers go on, and none is started or ended."""
    report = run(load=((0.0, 3.0),), stale=(1_200.0, 2_400.0))
    assert len(set(workers_between(report, 1_275, 2_400))) == 1
    assert report.samples[100].reason.startswith("the last observation is 300 s old")


def test_a_saturated_database_does_not_fill_the_machine() -> None:
    """The database serves 3 jobs per second however many workers ask for 20: growth stops, and the reason says so."""
    report = run(load=((0.0, 20.0),), database_per_second=3.0, seconds=1_800.0)
    assert any("did not raise the throughput" in sample.reason for sample in report.samples)
    assert workers_between(report, 300, 315)[0] <= 12
    assert workers_between(report, 1_780, 1_800)[0] < 50


def test_a_model_that_cannot_run_is_refused_by_name() -> None:
    """A typing error in a load must not look like a result."""
    broken: dict[str, dict[str, object]] = {
        "load": {"load": ((5.0, 1.0),)}, "limit": {"limit": ((0.0, -1.0),)}, "slots": {"slots": 0},
        "service_seconds": {"service_seconds": -2.0}, "seconds": {"seconds": math.inf},
    }  # fmt: skip
    for field, options in broken.items():
        with pytest.raises(BadValue) as refused:
            Plant(replace(PlantSpec(), **options))
        assert refused.value.field == field
