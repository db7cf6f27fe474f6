"""Gates that a worker asks for at once: with a limit per account, one by one they cost a transaction each."""

import pytest

from leaseway.domain.exchange import Gate
from leaseway.domain.limits.limit import PermitRequest
from leaseway.worker.permit_queue import TOGETHER_MAX, GateState, PermitRequests, choose_together

ACME, OTHER = "acme", "other"


def waiting(*limits: str, tenant: str = ACME, ready: int = 1) -> GateState:
    requests = tuple(PermitRequest(name, name) for name in limits)
    state = GateState(Gate(" ".join(limits), tenant), requests)
    state.ready = ready
    return state


def own_requests(state: GateState) -> PermitRequests:
    return state.requests


def choose(*states: GateState, room: int = 100, places: int = 100) -> list[tuple[GateState, int]]:
    return choose_together(iter(states), own_requests, lambda tenant: min(room, places), room)


def test_gates_with_limits_of_their_own_are_asked_for_together() -> None:
    """A claim from thousands of lanes must not wait for a commit of the limiter per lane."""
    first, second, third = waiting("a", ready=3), waiting("b", "c"), waiting("d", ready=5)
    assert choose(first, second, third) == [(first, 3), (second, 1), (third, 5)]


@pytest.mark.parametrize("other", [waiting("a"), waiting("b", "a"), waiting("b", tenant=OTHER), waiting()])
def test_a_gate_that_shares_something_waits_for_the_answer(other: GateState) -> None:
    """Under the same limit a refusal would be given twice, and the limiter keeps a time for each. The places of two
    tenants are counted apart. A gate without limits is closed by the settings of its tenant."""
    first = waiting("a")
    assert choose(first, other, waiting("z")) == [(first, 1)]
    assert choose(waiting(), first)[1:] == []


def test_no_more_is_asked_for_than_there_is_room() -> None:
    """Permits that nobody uses are kept from other workers until they are returned."""
    first, second, third = waiting("a", ready=3), waiting("b", ready=3), waiting("c", ready=3)
    assert choose(first, second, third, room=4) == [(first, 3), (second, 1)]
    assert choose(first, second, third, places=3) == [(first, 3)]
    assert choose(first, second, third, places=-1) == [(first, 3)], "the first one is closed by its own check"
    assert choose(first, second, third, room=2) == [(first, 2)]


def test_the_number_asked_for_at_once_is_bounded() -> None:
    """Each one is a task, and a call of the limiter."""
    states = [waiting(f"limit-{number}") for number in range(2 * TOGETHER_MAX)]
    assert len(choose(*states, room=1_000, places=1_000)) == TOGETHER_MAX
    assert choose() == []
