"""Supervisors of one pool agree through its record: together they run what the pool needs, and never twice of it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.stores.conftest import KEEPING, Keeping, kept

from leaseway import App
from leaseway.domain.scaling.agreement import (
    FLEETS_MAX,
    SILENT_SECONDS,
    FleetShare,
    PoolAgreement,
    agree,
    divide,
    format_agreement,
    join_fleets,
    leave_fleets,
    parse_agreement,
)
from leaseway.domain.scaling.demand import PoolObservation, ScalingSettings, WorkGroup
from leaseway.ports.store import require_pools
from leaseway.scaling.agree import PoolSeat, fleet_pool
from leaseway.scaling.fleet import Fleet, FleetSpec
from leaseway.scaling.pools import PoolMonitor, PoolSpec
from leaseway.system import SystemChance, SystemClock, SystemIds
from leaseway.telemetry.log import NoEvents
from leaseway.testing.clock import FakeClock
from leaseway.wiring import limiter_at
from leaseway.worker.environment import Environment

SETTINGS = ScalingSettings(workers_min=1, workers_max=4, step_seconds=0.0)


def share(name: str, workers: int = 0, least: int = 1, most: int = 4, at: float = 0.0) -> FleetShare:
    return FleetShare(name=name, workers=workers, workers_min=least, workers_max=most, seen_at=at)


def load(ready: int, at: float = 0.0) -> PoolObservation:
    return PoolObservation(at=at, groups=[WorkGroup(ready=ready)], finished_per_second=0.1)


shares = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=5
).map(lambda rows: [share(str(n), has, low, low + more) for n, (has, low, more) in enumerate(rows)])  # fmt: skip


@given(shares, st.integers(0, 120))
def test_every_share_is_within_its_bounds_and_all_together_are_the_decision(
    fleets: Sequence[FleetShare], workers: int
) -> None:
    """One worker too many in each of two fleets is what the agreement is there to prevent."""
    found = divide(fleets, workers)
    least, most = sum(each.workers_min for each in fleets), sum(each.workers_max for each in fleets)
    assert sum(each.workers for each in found) == min(max(workers, least), most)
    assert all(each.workers_min <= each.workers <= each.workers_max for each in found)


@given(shares, st.integers(0, 120))
def test_a_division_moves_no_worker_from_one_fleet_to_another(fleets: Sequence[FleetShare], workers: int) -> None:
    """Each change of a share starts or drains a process."""
    before = divide(fleets, sum(each.workers for each in fleets))
    pairs = zip(before, divide(before, workers), strict=True)
    changes = [after.workers - earlier.workers for earlier, after in pairs]
    assert not any(change > 0 for change in changes) or not any(change < 0 for change in changes)


def test_one_fleet_decides_for_all_and_the_others_take_their_share() -> None:
    """Two fleets that each provide for the whole load start twice the workers."""
    first = agree(PoolAgreement(), share("a"), load(200), SETTINGS, 5.0)
    both = agree(first, share("b", at=1.0), load(200, 1.0), SETTINGS, 5.0)
    assert both.workers <= 8
    assert {each.name for each in both.fleets} == {"a", "b"}
    again = agree(both, share("a", at=2.0), load(0, 2.0), SETTINGS, 5.0)
    assert (again.workers, again.decided_at) == (both.workers, both.decided_at)


def test_a_fleet_that_joins_brings_its_workers_and_a_known_one_keeps_its_share() -> None:
    """After a crash of the store, the record is empty, and the workers that run are there nevertheless."""
    joined = join_fleets(PoolAgreement(), share("a", 3))
    assert joined.workers == 3
    assert join_fleets(joined, share("a", 1)).workers == 3


def test_a_silent_fleet_loses_its_share_to_the_others() -> None:
    """A machine that is gone must not keep its part of the work from being provided for."""
    both = agree(agree(PoolAgreement(), share("a"), load(200), SETTINGS, 0.0), share("b"), load(200), SETTINGS, 0.0)
    later = SILENT_SECONDS + 1
    alone = agree(both, share("b", at=later), load(200, later), SETTINGS, 1_000.0)
    assert [each.name for each in alone.fleets] == ["b"]
    assert alone.decided_at == later
    assert alone.workers == 4


def test_a_fleet_that_leaves_makes_the_others_decide_at_once() -> None:
    """They would otherwise notice it after half a minute."""
    both = join_fleets(join_fleets(PoolAgreement(), share("a", 2)), share("b", 2))
    left = leave_fleets(replace(both, decided_at=10.0), "a")
    assert agree(left, share("b", at=10.5), load(200, 10.5), SETTINGS, 5.0).decided_at == 10.5


def test_a_clock_that_was_set_back_does_not_stop_decisions() -> None:
    """A record from the future would otherwise hold the fleet until that time."""
    future = replace(join_fleets(PoolAgreement(), share("a", 1, at=1e6)), decided_at=1e6)
    assert agree(future, share("a", at=5.0), load(200, 5.0), SETTINGS, 5.0).decided_at == 5.0


def test_an_agreement_survives_its_record_and_a_broken_record_counts_as_none() -> None:
    """A version of tomorrow may write other fields; the fleet must go on."""
    agreed = agree(PoolAgreement(), share("a"), load(200), SETTINGS, 5.0)
    assert parse_agreement(format_agreement(agreed)) == agreed
    assert parse_agreement("{") == parse_agreement('{"state": 1}') == PoolAgreement()


@pytest.mark.parametrize("field", ["workers", "live", "workers_min", "workers_max"])
@pytest.mark.parametrize("number", [2**62, 10**7, -1])
def test_a_record_with_numbers_that_no_fleet_has_counts_as_none(field: str, number: int) -> None:
    """To share out 10 million workers took minutes, in the event loop of every supervisor and service."""
    fleet = {"name": "a", "workers": 1, "workers_min": 0, "workers_max": 9, "seen_at": 1.0, field: number}
    assert parse_agreement(json.dumps({"fleets": [fleet]})) == PoolAgreement()
    fine = {**fleet, field: 3}
    assert parse_agreement(json.dumps({"fleets": [fine]})) != PoolAgreement()
    assert parse_agreement(json.dumps({"fleets": [fine] * (FLEETS_MAX + 1)})) == PoolAgreement()


def test_an_agreement_is_bounded() -> None:
    """A record grows with every fleet and every decision, and is written every few seconds."""
    agreed = PoolAgreement()
    for number in range(FLEETS_MAX + 50):
        agreed = agree(agreed, share(f"{number:03}"), load(200 * (number % 2)), SETTINGS, 0.0)
    assert len(agreed.fleets) == FLEETS_MAX
    assert len(agreed.decisions) <= 20


def test_pools_of_the_same_queues_have_the_same_name() -> None:
    """Fleets meet only if they find each other, in whichever order their queues are given."""
    assert fleet_pool(("mail", "default")) == fleet_pool(["default", "mail", "mail"]) == "fleet:default+mail"
    long = [f"queue {number}" for number in range(100)]
    assert len(fleet_pool(long)) <= 200
    assert fleet_pool(long) != fleet_pool([*long, "more"])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=KEEPING)
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Keeping]:
    async with kept(request, clock, tmp_path) as store:
        yield store


async def test_supervisors_that_decide_at_once_make_one_decision(store: Keeping) -> None:
    """Without the comparison, the last of them would overwrite the shares that the others have started already."""
    seats = [PoolSeat("fleet:default", ("default",), 1, SETTINGS, 5.0) for _ in range(4)]
    world = Environment(
        store, limiter_at("memory://"), None, SystemClock(), SystemChance(), SystemIds(), NoEvents()  # type: ignore[arg-type]
    )  # fmt: skip
    names = [f"fleet {number}" for number in range(len(seats))]
    for _ in range(3):
        await asyncio.gather(
            *(seat.decide(world, share(name, most=3), load(200)) for seat, name in zip(seats, names, strict=True))
        )
    found = await require_pools(store).read("fleet:default")
    assert found is not None
    agreed = parse_agreement(found.text)
    assert [each.name for each in agreed.fleets] == names
    assert agreed.workers <= 12
    assert agreed.queues == ("default",)


async def test_two_fleets_share_the_load_of_their_queues() -> None:
    """Each of them alone would run four workers."""
    app = App("memory://")

    @app.job
    async def send(n: int) -> None: ...

    async with app:

        async def open_world() -> Environment:
            return app.world

        def fleet(name: str) -> Fleet:
            settings = ScalingSettings(workers_min=0, workers_max=4, step_seconds=0.0, up_step_workers=1)
            spec = FleetSpec((sys.executable, "-c", ""), {}, ("default",), 1, 1.0, settings, name)
            return Fleet(spec, open_world, app.world.clock, NoEvents())

        await send.submit(n=1)
        one, two = fleet("one"), fleet("two")
        for each in (one, two, one):
            await each.decide()
        assert one.desired + two.desired == 1


async def test_replicas_of_a_service_continue_each_others_decisions() -> None:
    """An orchestrator asks any replica. Two of them with their own last answers would make the fleet swing."""
    app = App("memory://")

    @app.job
    async def send(n: int) -> None: ...

    async with app:
        settings = ScalingSettings(workers_min=0, workers_max=8, up_step_workers=1, up_step_ratio=0.0)
        spec = PoolSpec(name="mail", queues=("default",), slots=1, settings=settings)
        await send.submit_many([{"n": n} for n in range(2)])
        one, two = (PoolMonitor(spec, lambda: app.world) for _ in range(2))

        async def read() -> tuple[int, Sequence[object]]:
            return await app.world.store.reads.now(), await app.world.store.reads.lanes()

        first = (await one.read(read)).decision.workers  # type: ignore[arg-type]
        await send.submit_many([{"n": n} for n in range(98)])
        second = (await two.read(read)).decision.workers  # type: ignore[arg-type]
        assert second == first + 1  # a replica without the record would start with the maximum
