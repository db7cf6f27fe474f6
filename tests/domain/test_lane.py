"""A claim is divided by weight and completely, never beyond what a lane has or its gate admits."""

from hypothesis import given
from hypothesis import strategies as st

from leaseway.domain.exchange import CLOSED_US_MAX, WHY_LENGTH_MAX, Admit, Closing, Gate
from leaseway.domain.lane import (
    SCALE,
    FlowTimes,
    LaneTurn,
    admits_by_gate,
    advance,
    distinct_closings,
    divide_claim,
    share,
    usable,
)
from leaseway.domain.tenant import WEIGHT_MAX

lanes = st.dictionaries(st.integers(0, 50), st.integers(0, 1_000), max_size=20)
counts = st.integers(-5, 2_000)


@given(counts, lanes)
def test_no_lane_gets_more_than_it_has_nor_is_named_for_nothing(count: int, ready: dict[int, int]) -> None:
    """A store uses the shares unchanged, so a share that is too large would ask for jobs that do not exist."""
    assert all(0 < given <= ready[lane] for lane, given in share(count, ready).items())


@given(counts, lanes)
def test_nothing_is_left_over_while_there_is_work(count: int, ready: dict[int, int]) -> None:
    """Fairness must not leave a worker idle."""
    assert sum(share(count, ready).values()) == max(0, min(count, sum(ready.values())))


@given(counts, lanes)
def test_a_lane_that_wants_more_gets_as_much_as_any_other(count: int, ready: dict[int, int]) -> None:
    """Shares may differ by one job, which cannot be divided and goes to the lane further in front."""
    shares = dict.fromkeys(ready, 0) | share(count, ready)
    hungry = [lane for lane in ready if shares[lane] < ready[lane]]
    most = max(shares.values(), default=0)
    assert all(most - shares[lane] <= 1 for lane in hungry)
    assert [shares[lane] for lane in hungry] == sorted((shares[lane] for lane in hungry), reverse=True)


@given(counts, lanes)
def test_shares_keep_the_order_of_the_lanes(count: int, ready: dict[int, int]) -> None:
    """The lane that waited longest must be served first."""
    shares = share(count, ready)
    assert list(shares) == [lane for lane in ready if lane in shares]


def test_what_a_small_lane_leaves_goes_to_the_others() -> None:
    """A readable example."""
    assert share(7, {3: 1, 1: 10, 2: 10}) == {3: 1, 1: 3, 2: 3}
    assert share(2, {3: 1, 1: 10, 2: 10}) == {3: 1, 1: 1}
    assert share(0, {1: 10}) == share(-1, {1: 10}) == share(5, {}) == share(5, {1: 0}) == {}


def test_a_huge_claim_is_divided_at_once() -> None:
    """The number of rounds must depend on the lanes, not on the jobs."""
    assert share(10**12, {1: 10**12, 2: 10**12}) == {1: 5 * 10**11, 2: 5 * 10**11}


weighted = st.dictionaries(
    st.integers(0, 50), st.tuples(st.integers(0, 1_000), st.integers(1, 5) | st.just(WEIGHT_MAX)), max_size=20
)


@given(counts, weighted)
def test_weights_leave_nothing_over_and_take_nothing_that_is_not_there(
    count: int, lanes: dict[int, tuple[int, int]]
) -> None:
    """The two properties above must hold for every weight."""
    ready = {lane: most for lane, (most, _) in lanes.items()}
    shares = share(count, ready, {lane: weight for lane, (_, weight) in lanes.items()})
    assert all(0 < given <= ready[lane] for lane, given in shares.items())
    assert sum(shares.values()) == max(0, min(count, sum(ready.values())))


def test_hungry_lanes_get_portions_by_weight() -> None:
    """Readable examples."""
    assert share(8, {1: 99, 2: 99}, {2: 3}) == {1: 2, 2: 6}
    assert share(10, {1: 99, 2: 99}, {2: 3}) == {1: 3, 2: 7}
    assert share(8, {1: 1, 2: 99, 3: 99}, {1: 1, 2: 2, 3: 5}) == {1: 1, 2: 2, 3: 5}
    assert share(8, {1: 99, 2: 1}, {2: WEIGHT_MAX}) == {1: 7, 2: 1}
    assert share(1, {1: 99, 2: 99}, {2: WEIGHT_MAX}) == {1: 1}


MAPS, MAIL = Gate("maps", "a"), Gate("mail", "a")


def turn(lane: int, ready: int, gate: Gate | None = None, weight: int = 1) -> LaneTurn:
    return LaneTurn(lane, ready, weight, gate, ("q", f"t{lane}"), place=0)


def test_a_gate_lets_out_what_is_admitted_to_the_lanes_in_front() -> None:
    """Several lanes behind one gate must not get more than it admits in total."""
    turns = [turn(1, 5, MAPS), turn(2, 5), turn(3, 5, MAPS), turn(4, 5, MAIL)]
    assert usable(turns, {MAPS: 7}) == {1: 5, 2: 5, 3: 2, 4: 0}
    assert divide_claim(99, turns, {MAPS: 7}) == {1: 5, 2: 5, 3: 2}
    assert divide_claim(4, turns, {MAPS: 7, MAIL: 1}) == {1: 1, 2: 1, 3: 1, 4: 1}


def test_only_what_is_admitted_counts() -> None:
    """A gate with zero admitted jobs is closed."""
    assert admits_by_gate([Admit(MAPS, 2), Admit(MAIL, 0), Admit(MAPS, 3), Admit(MAIL, -1)]) == {MAPS: 5}


def test_a_heavy_flow_moves_slowly() -> None:
    """Even the heaviest flow must move, because a flow that never moves would be served forever."""
    for weight, count, moved in ((1, 2, 2 * SCALE), (3, 2, 2 * SCALE // 3), (WEIGHT_MAX, 1, SCALE // WEIGHT_MAX)):
        flows, lanes = advance([turn(1, 5, weight=weight)], {1: count})
        assert flows == {("q", "t1"): FlowTimes(moved, 0, None)}
        assert lanes == {}
        assert moved > 0


def test_a_tenant_with_many_lanes_gets_one_share() -> None:
    """Lanes are cheap: a tenant could multiply its share by a limit per account."""
    many = [LaneTurn(n, 5, 1, MAPS, ("q", "many"), 0) for n in range(1, 100)]
    turns = [many[0], LaneTurn(0, 50, 1, None, ("q", "one"), 0), *many[1:]]
    shares = divide_claim(20, turns, {MAPS: 99})
    assert (shares[0], sum(shares.values())) == (10, 20)


def test_the_lanes_of_a_flow_advance_only_if_they_compete() -> None:
    """The floor of the lanes must not fall, and the order of a flow with one lane needs no write."""
    lanes = [LaneTurn(n, 5, 1, MAPS, ("q", "t"), 7, lane_place=place) for n, place in ((1, 3), (2, 4))]
    flows, vtimes = advance(lanes, {1: 1})
    assert flows == {("q", "t"): FlowTimes(7 + SCALE, 7, 3)}
    assert vtimes == {1: 3 + SCALE}
    assert advance(lanes[:1], {1: 1}) == ({("q", "t"): FlowTimes(7 + SCALE, 7, None)}, {})
    assert advance([], {}) == ({}, {})


def test_only_the_first_closing_of_a_gate_counts() -> None:
    """Every store must close a lane for the same time, and for no longer than a definition may be outdated."""
    closings = [Closing(MAPS, 10**12, "w" * 9_999), Closing(MAPS, 1, "other"), Closing(MAIL, 5, "x")]
    assert distinct_closings(closings) == [
        Closing(MAPS, CLOSED_US_MAX, "w" * WHY_LENGTH_MAX),
        Closing(MAIL, 5, "x"),
    ]
