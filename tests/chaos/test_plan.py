"""Which faults a round injects. A campaign that never reaches the hard ones proves nothing about them."""

from collections.abc import Sequence
from itertools import islice

import pytest
from chaos.faults.network import Blackhole, Bury, hole_lengths
from chaos.plan import FAULTS, schedule
from chaos.stage import SHORT, Scale

SCALE = Scale()
SEEDS = [str(number) for number in range(50)]


def holes(
    seed: str, scale: Scale, count: int, names: Sequence[str] = (), kind: type[Blackhole] = Blackhole
) -> list[float]:
    """The lengths of the first ones."""
    found = (each.fault.seconds for each in schedule(seed, scale, names) if type(each.fault) is kind)
    return list(islice(found, count))


@pytest.mark.parametrize("kind", [Blackhole, Bury])
@pytest.mark.parametrize("others", [None, [], ["kill"]])
def test_of_three_holes_one_is_short_one_costs_the_leases_and_one_outlasts_all_patience(
    kind: type[Blackhole], others: list[str] | None
) -> None:
    """With chance alone, most rounds never had an outage longer than a few seconds."""
    for seed in SEEDS:
        names = () if others is None else [kind.name, *others]
        short, middle, long = sorted(holes(seed, SCALE, 3, names, kind))
        assert 0.1 <= short <= SCALE.lease <= middle <= SCALE.patience <= long <= SCALE.blackhole


def test_the_long_holes_reach_up_to_the_longest() -> None:
    """Outages longer than a lease are the ones that lose leases."""
    longest = [max(holes(seed, SCALE, 3)) for seed in SEEDS]
    assert min(longest) < 25
    assert max(longest) > 55


def test_the_order_of_the_lengths_is_left_to_chance() -> None:
    """Otherwise a short campaign would inject only one of them."""
    assert len({holes(seed, SCALE, 3).index(max(holes(seed, SCALE, 3))) for seed in SEEDS}) == 3


def test_lengths_that_the_scale_does_not_have_are_left_out() -> None:
    """A short campaign must not plan outages that it cannot contain."""
    assert hole_lengths(SHORT) == [(0.1, SHORT.blackhole)]
    assert hole_lengths(Scale(blackhole=15.0)) == [(0.1, 3.0), (3.0, 15.0)]
    assert max(holes("1", SHORT, 20)) <= SHORT.blackhole


def test_a_seed_is_a_schedule() -> None:
    """A seed must reproduce the same faults."""
    first, again = (list(islice(schedule("7", SCALE), 60)) for _ in range(2))
    assert first == again


def test_every_fault_comes_before_one_comes_twice() -> None:
    """A short campaign must cover as many kinds of fault as possible."""
    assert {each.fault.name for each in islice(schedule("7", SCALE), len(FAULTS["postgres"]))} == set(
        FAULTS["postgres"]
    )
