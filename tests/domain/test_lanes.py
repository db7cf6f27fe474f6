"""A claim is divided evenly, completely, and never beyond what a lane has."""

from hypothesis import given
from hypothesis import strategies as st

from leaseway.domain.lanes import share

lanes = st.dictionaries(st.integers(0, 50), st.integers(0, 1_000), max_size=20)
counts = st.integers(-5, 2_000)


@given(counts, lanes)
def test_no_lane_gets_more_than_it_has_nor_is_named_for_nothing(count: int, ready: dict[int, int]) -> None:
    """A store takes the shares as they are: too much would lease what is not there."""
    assert all(0 < given <= ready[lane] for lane, given in share(count, ready).items())


@given(counts, lanes)
def test_nothing_is_left_over_while_there_is_work(count: int, ready: dict[int, int]) -> None:
    """Fairness must not leave a worker idle."""
    assert sum(share(count, ready).values()) == max(0, min(count, sum(ready.values())))


@given(counts, lanes)
def test_a_lane_that_wants_more_gets_as_much_as_any_other(count: int, ready: dict[int, int]) -> None:
    """But for one job, which cannot be divided; and that goes to who stands further in front."""
    shares = dict.fromkeys(ready, 0) | share(count, ready)
    hungry = [lane for lane in ready if shares[lane] < ready[lane]]
    most = max(shares.values(), default=0)
    assert all(most - shares[lane] <= 1 for lane in hungry)
    assert [shares[lane] for lane in hungry] == sorted((shares[lane] for lane in hungry), reverse=True)


@given(counts, lanes)
def test_shares_keep_the_order_of_the_lanes(count: int, ready: dict[int, int]) -> None:
    """Who waited longest is served first."""
    shares = share(count, ready)
    assert list(shares) == [lane for lane in ready if lane in shares]


def test_what_a_small_lane_leaves_goes_to_the_others() -> None:
    """An example, for people."""
    assert share(7, {3: 1, 1: 10, 2: 10}) == {3: 1, 1: 3, 2: 3}
    assert share(2, {3: 1, 1: 10, 2: 10}) == {3: 1, 1: 1}
    assert share(0, {1: 10}) == share(-1, {1: 10}) == share(5, {}) == share(5, {1: 0}) == {}


def test_a_huge_claim_is_divided_at_once() -> None:
    """The number of rounds depends on the lanes, not on the jobs."""
    assert share(10**12, {1: 10**12, 2: 10**12}) == {1: 5 * 10**11, 2: 5 * 10**11}
