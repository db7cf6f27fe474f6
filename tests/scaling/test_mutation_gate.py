"""The safeguards of the autoscaler, removed one by one: an oracle must notice each of them.

A safeguard that no oracle needs is dead code or an untested promise. Replacements are functions in the place of others,
never a flag in the product: see `tests.simulation.campaign.sabotage`.

This is the autoscaler's part of the mutation gate. Its removals are not in `sabotage`, because no oracle of the
simulated campaign could notice them: every action of an autoscaler is a start or a drain, and
`tests.simulation.test_scaling` proves that these break no promise even if they are wrong, late or forgotten. What a
removal costs is workers, which the oracles below count.
"""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace
from tests.scaling.test_fed_slots import FEEDS, count_everything, observe_strange_fleet
from tests.simulation.campaign.sabotage import replaced

from leaseway.domain.scaling import agreement, decision, demand
from leaseway.domain.scaling.agreement import FleetShare, PoolAgreement, agree
from leaseway.domain.scaling.decision import ScalingDecision, ScalingState, decide_workers
from leaseway.domain.scaling.demand import BusySlots, PoolObservation, ScalingSettings, WorkGroup, workers_wanted
from leaseway.scaling import observe
from leaseway.scaling.plant import Plant, PlantReport, PlantSpec, law
from leaseway.stores.memory.definitions import MemoryPools
from leaseway.stores.memory.store import MemoryStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.pools_contract import test_a_supervisor_that_saw_an_older_version_writes_nothing as check_versions

SETTINGS = ScalingSettings(workers_min=0, workers_max=50)
QUIET = PlantSpec(load=((0.0, 3.0),))


def run(spec: PlantSpec) -> PlantReport:
    return Plant(spec).run(law(SETTINGS))


# -- oracles ---------------------------------------------------------------------------------------------------------


def check_limit() -> None:
    behind = PlantSpec(load=((0.0, 0.0),), limit=((0.0, 1.0),), backlog=3_600)
    assert run(behind).workers_max <= 2


def check_feeding() -> None:
    """Leases of killed workers count as busy slots."""
    spec = PlantSpec(
        load=((0.0, 0.0),), backlog=3_600, feeds=12.0, phantom_slots=16, start_seconds=5.0, seconds=300.0
    )  # fmt: skip
    gently = replace(SETTINGS, up_step_workers=1, up_step_ratio=0.0)
    assert Plant(spec).run(law(gently)).workers_max <= 3


def check_counted() -> None:
    """Of six workers, three are fed."""
    assert workers_wanted(observe_strange_fleet(6), SETTINGS)[0] <= FEEDS


def check_stale() -> None:
    """The load triples while the store does not answer."""
    report = run(PlantSpec(load=((0.0, 3.0), (1_500.0, 9.0)), stale=(1_200.0, 2_400.0)))
    assert len({sample.workers for sample in report.samples if 1_275 <= sample.at < 2_400}) == 1


def check_noise() -> None:
    assert run(replace(QUIET, noise=0.4)).changes <= 20


def check_saturation() -> None:
    report = run(PlantSpec(load=((0.0, 20.0),), database_per_second=3.0, seconds=1_800.0))
    assert report.samples[-1].workers < 50


def check_steps() -> None:
    report = run(PlantSpec(load=((0.0, 0.0),), backlog=10_000, seconds=300.0))
    workers = [sample.workers for sample in report.samples]
    assert all(later - earlier <= max(4, earlier) for earlier, later in pairwise(workers))


def check_idle() -> None:
    """A trickle must not end and start the last worker again and again."""
    report = run(PlantSpec(load=((0.0, 0.01),), seconds=10_800.0))
    assert report.changes <= 60


def check_busy() -> None:
    """A pool whose jobs run does not shrink below them."""
    seen = PoolObservation(at=1_000.0, groups=[WorkGroup(running=3, service_seconds=100.0)], workers=3)
    assert decide_workers(seen, ScalingState(), SETTINGS).workers == 3


def share(name: str, at: float = 0.0) -> FleetShare:
    return FleetShare(name=name, workers_min=1, workers_max=4, seen_at=at)


def load(at: float) -> PoolObservation:
    return PoolObservation(at=at, groups=[WorkGroup(ready=200)], finished_per_second=0.1)


def check_silence() -> None:
    both = agree(agree(PoolAgreement(), share("a"), load(0.0), SETTINGS, 5.0), share("b"), load(0.0), SETTINGS, 5.0)
    later = agree(both, share("b", 1_000.0), load(1_000.0), SETTINGS, 5.0)
    assert [each.name for each in later.fleets] == ["b"]


def check_one_decision() -> None:
    both = agree(agree(PoolAgreement(), share("a"), load(0.0), SETTINGS, 5.0), share("b"), load(0.0), SETTINGS, 5.0)
    assert both.workers <= 8


def check_agreement() -> None:
    asyncio.run(check_versions(MemoryStore(FakeClock().now_us)))


# -- removals --------------------------------------------------------------------------------------------------------


def want_without_bounds(seen: PoolObservation, settings: ScalingSettings) -> tuple[int, BusySlots]:
    return workers_wanted(replace(seen, groups=[replace(group, costs={}) for group in seen.groups]), settings)


def decide_on_stale(seen: PoolObservation, state: ScalingState, settings: ScalingSettings) -> ScalingDecision:
    return decide_workers(replace(seen, age_seconds=0.0), state, settings)


def remember_nothing(
    seen: PoolObservation, state: ScalingState, settings: ScalingSettings, wanted: int
) -> ScalingState:
    return replace(state, wanted=((seen.at, wanted),))


def grow_at_once(seen: PoolObservation, made: ScalingDecision, settings: ScalingSettings) -> ScalingDecision:
    return made


def want_the_backlog_only(seen: PoolObservation, settings: ScalingSettings) -> tuple[int, BusySlots]:
    return workers_wanted(replace(seen, groups=[replace(group, running=0) for group in seen.groups]), settings)


def shrink_at_once(seen: PoolObservation, made: ScalingDecision, settings: ScalingSettings) -> ScalingDecision:
    return made


async def write_without_comparing(self: MemoryPools, pool: str, seen: str | None, version: str, text: str) -> bool:
    before = await self.read(pool)
    return await KEPT_WRITE(self, pool, None if before is None else before.version, version, text)


def divide_for_each(fleets: Any, workers: int) -> list[FleetShare]:
    """Every fleet provides for the whole load."""
    return [replace(each, workers=max(workers, each.workers_max + 1)) for each in fleets]


KEPT_WRITE = MemoryPools.write


class Removal(Struct, frozen=True):
    removes: str
    owner: Any
    name: str
    value: Any
    oracle: Callable[[], None]


REMOVALS = (
    Removal("limits bound the demand", decision, "workers_wanted", want_without_bounds, check_limit),
    Removal(
        "a limit feeds no more than the fleet has", demand, "slots_fed", lambda _, bound: bound.fed_slots, check_feeding
    ),
    Removal("a lease is not a busy slot", observe, "share_busy", count_everything, check_counted),
    Removal("an old observation holds the fleet", decision, "hold_stale", decide_on_stale, check_stale),
    Removal("the rolling maximum", decision, "remember", remember_nothing, check_noise),
    Removal("no benefit, no growth", decision, "lacks_benefit", lambda *_: False, check_saturation),
    Removal("bounded steps up", decision, "grow", grow_at_once, check_steps),
    Removal("slow steps down", decision, "shrink", shrink_at_once, check_idle),
    Removal("running jobs keep their workers", decision, "workers_wanted", want_the_backlog_only, check_busy),
    Removal("silent fleets are left out", agreement, "is_heard", lambda *_: True, check_silence),
    Removal("shares of one decision", agreement, "divide", divide_for_each, check_one_decision),
    Removal(
        "a record is compared before it is written", MemoryPools, "write", write_without_comparing, check_agreement
    ),
)
ORACLES = sorted({each.oracle for each in REMOVALS}, key=lambda oracle: oracle.__name__)


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
def test_an_oracle_is_silent_while_every_safeguard_is_there(oracle: Callable[[], None]) -> None:
    """An oracle that always complains would let every removal pass as noticed."""
    oracle()


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: removal.removes)
def test_the_loss_of_a_safeguard_is_noticed(removal: Removal) -> None:
    """Otherwise somebody could simplify it away, and the fleet would swing, or wait fifty-fold for one permit."""
    with replaced(removal.owner, removal.name, removal.value), pytest.raises(AssertionError):
        removal.oracle()
