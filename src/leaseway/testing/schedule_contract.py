"""The guarantees of schedules, as tests that every store must pass: each fire happens once across processes, and only
if it is wanted. Used like `job_store_contract`, with the same fixtures.
"""

from typing import Any

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import NewJob
from leaseway.domain.schedule import Missed, Schedule, StoredSchedule
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import id_of, ids_in, job_of, keyed_job, new_job


def nightly(**options: Any) -> Schedule:
    return Schedule(**{"name": "nightly", "kind": "report", "cron": "0 3 * * *"} | options)


async def row_of(store: Store) -> StoredSchedule:
    (row,) = await store.schedules.all()
    return row


async def fire(store: Store, seen: Instant, *jobs: NewJob, upto: Instant | None = None) -> bool:
    return await store.schedules.fire("nightly", seen, seen + SECOND_US if upto is None else upto, jobs)


async def test_a_fire_that_another_process_made_is_refused(store: Store, clock: FakeClock) -> None:
    """Every worker processes the schedules; each fire must submit its jobs once."""
    await store.schedules.declare([nightly()])
    seen = clock.now_us()
    assert await fire(store, seen, new_job(1)) is True
    assert await fire(store, seen, new_job(2)) is False
    assert await ids_in(store) == [id_of(1)]


async def test_a_refused_fire_writes_nothing(store: Store, clock: FakeClock) -> None:
    """Neither jobs nor a new position in time may be written."""
    await store.schedules.declare([nightly()])
    before = await row_of(store)
    assert await fire(store, clock.now_us() - 1, new_job(1)) is False
    assert await row_of(store) == before
    assert await ids_in(store) == []


async def test_an_unknown_schedule_does_not_fire(store: Store, clock: FakeClock) -> None:
    """It was deleted from the store while its worker still ran."""
    assert await fire(store, clock.now_us(), new_job(1)) is False
    assert await ids_in(store) == []


async def test_a_paused_schedule_does_not_fire(store: Store, clock: FakeClock) -> None:
    """A process that computed the fire before the pause comes too late."""
    await store.schedules.declare([nightly()])
    seen = clock.now_us()
    assert await store.schedules.pause("nightly", True) is True
    assert await fire(store, seen, new_job(1)) is False
    assert await ids_in(store) == []
    assert (await row_of(store)).paused is True


async def test_pausing_an_unknown_schedule_says_so(store: Store) -> None:
    """A mistyped name must not look like success."""
    assert await store.schedules.pause("nightly", True) is False
    assert await store.schedules.pause("nightly", False) is False


async def test_a_fire_submits_its_jobs_and_moves_on(store: Store, clock: FakeClock) -> None:
    """Both must be written together: a fire without jobs is lost, and jobs without the new position come twice."""
    await store.schedules.declare([nightly()])
    seen = clock.now_us()
    clock.advance(90)
    assert await fire(store, seen, new_job(1), new_job(2, delay_us=SECOND_US), upto=seen + 60) is True
    row = await row_of(store)
    assert (row.seen, row.last_fire) == (seen + 60, seen + 60)
    assert await ids_in(store) == [id_of(1), id_of(2)]
    assert (await job_of(store, 2)).run_at == clock.now_us() + SECOND_US
    assert await fire(store, row.seen, new_job(3)) is True


async def test_a_fire_without_jobs_moves_on(store: Store, clock: FakeClock) -> None:
    """Fires that were dropped count as handled."""
    await store.schedules.declare([nightly()])
    assert await fire(store, clock.now_us()) is True
    assert (await row_of(store)).seen == clock.now_us() + SECOND_US


async def test_a_known_key_does_not_stop_a_fire(store: Store, clock: FakeClock) -> None:
    """No caller is there to be told about a conflict, and a blocked schedule would be worse."""
    await store.jobs.submit([keyed_job(1)])
    await store.schedules.declare([nightly()])
    jobs = (keyed_job(2), keyed_job(3, fingerprint="other"), new_job(4))
    assert await fire(store, clock.now_us(), *jobs) is True
    assert await ids_in(store) == [id_of(1), id_of(4)]


async def test_a_new_schedule_has_no_missed_fires(store: Store, clock: FakeClock) -> None:
    """It counts from now, however long the store has existed."""
    await store.schedules.declare([nightly()])
    assert await row_of(store) == StoredSchedule(schedule=nightly(), seen=clock.now_us(), now=clock.now_us())


async def test_declaring_again_keeps_the_place_in_time(store: Store, clock: FakeClock) -> None:
    """Every worker declares when it starts; a restart must not drop a due fire."""
    await store.schedules.declare([nightly()])
    seen = clock.now_us()
    clock.advance(60)
    await store.schedules.declare([nightly(kind="other", missed=Missed.ALL)])
    row = await row_of(store)
    assert (row.seen, row.now) == (seen, clock.now_us())
    assert row.schedule == nightly(kind="other", missed=Missed.ALL)


async def test_a_changed_expression_counts_from_now(store: Store, clock: FakeClock) -> None:
    """Past fires of the new expression were never promised."""
    await store.schedules.declare([nightly()])
    clock.advance(60)
    await store.schedules.declare([nightly(cron="0 4 * * *")])
    assert (await row_of(store)).seen == clock.now_us()
    clock.advance(60)
    await store.schedules.declare([nightly(cron="0 4 * * *", tz="Europe/Berlin")])
    row = await row_of(store)
    assert (row.seen, row.schedule.tz) == (clock.now_us(), "Europe/Berlin")


async def test_declaring_does_not_resume_and_forgets_no_fire(store: Store, clock: FakeClock) -> None:
    """An operator paused it; a deployment must not undo that."""
    await store.schedules.declare([nightly()])
    await fire(store, clock.now_us())
    fired = (await row_of(store)).last_fire
    await store.schedules.pause("nightly", True)
    await store.schedules.declare([nightly(cron="0 4 * * *")])
    row = await row_of(store)
    assert (row.paused, row.last_fire) == (True, fired)


async def test_fires_missed_while_paused_are_dropped(store: Store, clock: FakeClock) -> None:
    """An operator who resumes after a month does not want thirty reports."""
    await store.schedules.declare([nightly()])
    await store.schedules.pause("nightly", True)
    clock.advance(3_600)
    assert await store.schedules.pause("nightly", False) is True
    row = await row_of(store)
    assert (row.paused, row.seen) == (False, clock.now_us())


async def test_pausing_keeps_the_place_in_time(store: Store, clock: FakeClock) -> None:
    """Only resuming may move it."""
    await store.schedules.declare([nightly()])
    seen = clock.now_us()
    clock.advance(60)
    await store.schedules.pause("nightly", True)
    assert (await row_of(store)).seen == seen


async def test_resuming_what_was_not_paused_drops_no_fire(store: Store, clock: FakeClock) -> None:
    """A command that is sent twice must not cost a due fire."""
    await store.schedules.declare([nightly()])
    seen = clock.now_us()
    clock.advance(60)
    assert await store.schedules.pause("nightly", False) is True
    assert (await row_of(store)).seen == seen


async def test_schedules_are_listed_by_name(store: Store) -> None:
    """The list must not depend on which process declared first, and declaring nothing must change nothing."""
    await store.schedules.declare([nightly(name="b"), nightly(name="c")])
    await store.schedules.declare([nightly(name="a")])
    await store.schedules.declare([])
    assert [row.schedule.name for row in await store.schedules.all()] == ["a", "b", "c"]
