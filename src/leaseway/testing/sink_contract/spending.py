"""A run's budget of requests: taken before a request, and never exceeded."""

import asyncio

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.run_state import RunState
from leaseway.imports.sinks.port import Sink
from leaseway.testing.sink_contract.actors import LOW, RUN, Witness, picture


async def spent(sink: Sink, run: str = RUN.id) -> tuple[int, int | None]:
    found = await sink.runs.find(run)
    assert found is not None
    return found.requests, found.requests_max


async def test_a_run_without_a_budget_always_has_enough(sink: Sink, witness: Witness) -> None:
    """Most runs have no budget, so nothing may be written for them."""
    await sink.runs.start(RUN, [LOW])
    before = await picture(sink, witness)
    for _ in range(3):
        assert await sink.runs.spend(RUN.id, 10**9)
    assert await picture(sink, witness) == before


async def test_a_budget_is_spent_to_its_last_request_and_no_further(sink: Sink) -> None:
    """A refused amount takes nothing, because a smaller one may still fit."""
    await sink.runs.start(replace(RUN, requests_max=5), [LOW])
    assert [await sink.runs.spend(RUN.id, requests) for requests in (3, 3, 1, 0, 2, 1, 1)] == [
        *(True, False, True, True),
        *(False, True, False),
    ]
    assert await spent(sink) == (5, 5)


async def test_many_who_spend_at_once_never_pass_the_budget(sink: Sink, other: Sink) -> None:
    """Eight workers on four machines spend at the same moment. Checking first and taking later would exceed the
    budget.
    """
    await sink.runs.start(replace(RUN, requests_max=25), [LOW])
    answers = await asyncio.gather(*((sink, other)[number % 2].runs.spend(RUN.id, 1) for number in range(60)))
    assert answers.count(True) == 25
    assert await spent(sink) == (25, 25)


async def test_a_larger_budget_goes_on_from_what_was_spent(sink: Sink, other: Sink) -> None:
    """Resuming with a larger budget pays only for the rest."""
    await sink.runs.start(replace(RUN, requests_max=2), [LOW])
    assert await sink.runs.spend(RUN.id, 2)
    assert not await other.runs.spend(RUN.id, 1)
    for _ in range(2):
        await sink.runs.set_budget(RUN.id, 3)
    assert await other.runs.spend(RUN.id, 1)
    assert not await other.runs.spend(RUN.id, 1)
    assert await spent(sink) == (3, 3)


async def test_a_budget_can_be_lifted_and_set_later(sink: Sink, other: Sink) -> None:
    """Also for workers that found no budget before."""
    await sink.runs.start(RUN, [LOW])
    assert await other.runs.spend(RUN.id, 7)
    await sink.runs.set_budget(RUN.id, 1)
    assert [await other.runs.spend(RUN.id, 1) for _ in range(2)] == [True, False]
    await sink.runs.set_budget(RUN.id, None)
    assert await other.runs.spend(RUN.id, 100)
    assert await spent(sink) == (1, None)


async def test_a_budget_below_what_was_spent_is_used_up(sink: Sink) -> None:
    """Spent requests cannot be returned."""
    await sink.runs.start(replace(RUN, requests_max=5), [LOW])
    await sink.runs.spend(RUN.id, 4)
    await sink.runs.set_budget(RUN.id, 2)
    assert not await sink.runs.spend(RUN.id, 1)
    assert await spent(sink) == (4, 2)


async def test_runs_do_not_share_their_budgets(sink: Sink) -> None:
    """The budget of an earlier run must not affect this one."""
    for run in ("run-1", "run-2"):
        await sink.runs.start(replace(RUN, id=run, requests_max=1), [LOW])
        assert await sink.runs.spend(run, 1)
    await sink.runs.set_budget("run-2", 2)
    assert [await sink.runs.spend(run, 1) for run in ("run-1", "run-2")] == [False, True]


async def test_what_was_spent_stays_when_a_run_is_started_again_or_finishes(sink: Sink) -> None:
    """A request that was sent before a crash is charged."""
    budgeted = replace(RUN, requests_max=5)
    await sink.runs.start(budgeted, [LOW])
    await sink.runs.spend(RUN.id, 4)
    assert (await sink.runs.start(budgeted, [LOW])).requests == 4
    await sink.runs.finish(RUN.id, RunState.PARTIAL, notes={})
    assert await spent(sink) == (4, 5)


async def test_what_makes_no_sense_cannot_be_spent(sink: Sink, elsewhere: Sink) -> None:
    """A negative number would return spent requests, and a mistyped run must not look like a run without a budget."""
    await sink.runs.start(replace(RUN, requests_max=5), [LOW])
    with pytest.raises(BadValue, match=r"requests: must be at least 0 \(is -1\)"):
        await sink.runs.spend(RUN.id, -1)
    with pytest.raises(BadValue, match=r"requests_max: must be at least 0 \(is -1\)"):
        await sink.runs.set_budget(RUN.id, -1)
    for where, run in ((sink, "run-9"), (elsewhere, RUN.id)):
        with pytest.raises(BadValue, match=f"run: there is no run '{run}'"):
            await where.runs.spend(run, 1)
        with pytest.raises(BadValue, match=f"run: there is no run '{run}'"):
            await where.runs.set_budget(run, 1)
    assert await spent(sink) == (0, 5)
