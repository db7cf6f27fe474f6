"""Submission: no accepted job is lost, none is stored twice, and a batch is stored completely or not at all."""

from leaseway.domain.exchange import HeldLease
from leaseway.domain.ids import Token
from leaseway.domain.job import State, Submitted
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    ALL,
    HOUR_US,
    LEASE_US,
    MINUTE_US,
    ContractWorker,
    conflict_of,
    counts,
    done,
    held,
    id_of,
    ids_in,
    job_of,
    keyed_job,
    leased_job,
    new_job,
    retry,
)


async def test_a_key_with_other_arguments_is_refused_by_name(store: Store) -> None:
    """Two different jobs under one key are a defect of the submitter, which must learn the key."""
    await store.jobs.submit([keyed_job(1)])
    message = await conflict_of(store.jobs.submit([keyed_job(2, fingerprint="other")]))
    assert "key-1" in message
    assert await ids_in(store) == [id_of(1)]


async def test_one_conflict_stores_nothing_of_the_batch(store: Store) -> None:
    """A caller that only sees an error cannot safely repeat half a batch."""
    await store.jobs.submit([keyed_job(1)])
    batch = [new_job(2), keyed_job(3, key="key-2"), keyed_job(4, fingerprint="other"), new_job(5)]
    await conflict_of(store.jobs.submit(batch))
    assert await ids_in(store) == [id_of(1)]
    assert await counts(store) == {"ready": 1}


async def test_a_refused_batch_does_not_take_its_keys(store: Store) -> None:
    """The key of a job that was never stored must stay free, or its job could never be submitted."""
    await store.jobs.submit([keyed_job(1)])
    await conflict_of(store.jobs.submit([keyed_job(2, key="key-2"), keyed_job(3, fingerprint="other")]))
    assert await store.jobs.submit([keyed_job(4, key="key-2", fingerprint="new")]) == [Submitted(id_of(4))]


async def test_a_refused_batch_opens_no_lane(store: Store) -> None:
    """A lane without a job would stay in every list forever."""
    await conflict_of(
        store.jobs.submit([keyed_job(1, tenant="acme"), keyed_job(2, tenant="acme", fingerprint="other")])
    )
    assert await store.reads.lanes() == []


async def test_a_batch_that_conflicts_with_itself_is_refused(store: Store) -> None:
    """The store must not choose one of the two; the submitter must decide."""
    await conflict_of(store.jobs.submit([keyed_job(1), keyed_job(2, fingerprint="other")]))
    assert await ids_in(store) == []


async def test_the_same_key_twice_in_a_batch_is_one_job(store: Store) -> None:
    """It must not matter whether duplicates arrive together or one after another."""
    answers = await store.jobs.submit([keyed_job(1), keyed_job(2)])
    assert answers == [Submitted(id_of(1)), Submitted(id_of(1), replayed=True)]
    assert await ids_in(store) == [id_of(1)]


async def test_a_repeated_key_names_the_first_job(store: Store) -> None:
    """A client that lost the reply must not start the work again."""
    await store.jobs.submit([keyed_job(1)])
    assert await store.jobs.submit([keyed_job(2)]) == [Submitted(id_of(1), replayed=True)]
    assert await ids_in(store) == [id_of(1)]
    assert await counts(store) == {"ready": 1}


async def test_a_key_holds_in_every_queue_of_its_tenant(store: Store) -> None:
    """Moving a kind to another queue must not make its submissions new."""
    await store.jobs.submit([keyed_job(1)])
    assert await store.jobs.submit([keyed_job(2, queue="other")]) == [Submitted(id_of(1), replayed=True)]


async def test_tenants_do_not_see_the_keys_of_each_other(store: Store) -> None:
    """One tenant could otherwise suppress the jobs of another, or learn about them."""
    await store.jobs.submit([keyed_job(1, tenant="acme")])
    other = keyed_job(2, tenant="umbrella", fingerprint="other")
    assert await store.jobs.submit([other]) == [Submitted(id_of(2))]


async def test_a_key_counts_until_the_instant_it_expires(store: Store, clock: FakeClock) -> None:
    """The retention is promised to the microsecond."""
    await store.jobs.submit([keyed_job(1)])
    clock.advance_us(HOUR_US - 1)
    assert await store.jobs.submit([keyed_job(2)]) == [Submitted(id_of(1), replayed=True)]
    clock.advance_us(1)
    assert await store.jobs.submit([keyed_job(3, fingerprint="other")]) == [Submitted(id_of(3))]


async def test_a_key_used_again_does_not_live_longer(store: Store, clock: FakeClock) -> None:
    """Otherwise a client that repeats its request every minute would never get a new job."""
    await store.jobs.submit([keyed_job(1)])
    clock.advance_us(HOUR_US - 1)
    await store.jobs.submit([keyed_job(2)])
    clock.advance_us(1)
    assert await store.jobs.submit([keyed_job(3)]) == [Submitted(id_of(3))]


async def test_a_key_taken_after_expiry_protects_its_new_job(store: Store, clock: FakeClock) -> None:
    """The row of the expired key still exists, and its replacement must last as long as the first did."""
    await store.jobs.submit([keyed_job(1)])
    clock.advance_us(HOUR_US)
    await store.jobs.submit([keyed_job(2, fingerprint="other")])
    clock.advance_us(HOUR_US - 1)
    await conflict_of(store.jobs.submit([keyed_job(3)]))
    again = keyed_job(4, fingerprint="other")
    assert await store.jobs.submit([again]) == [Submitted(id_of(2), replayed=True)]


async def test_a_key_outlives_its_finished_job(store: Store) -> None:
    """A repetition that arrives after the job is done must not run it again."""
    await store.jobs.submit([keyed_job(1)])
    worker = ContractWorker(store)
    await worker.settle(done(await worker.claim_one()))
    assert await store.jobs.submit([keyed_job(2)]) == [Submitted(id_of(1), replayed=True)]


async def test_a_key_outlives_the_discarded_job(store: Store) -> None:
    """Deleting the record of a job must not make it run again."""
    await store.jobs.submit([keyed_job(1)])
    await store.operations.cancel(id_of(1))
    await store.operations.discard(ALL, 10)
    assert await store.jobs.submit([keyed_job(2)]) == [Submitted(id_of(1), replayed=True)]


async def test_a_key_outlives_the_pruned_job(store: Store) -> None:
    """Keys and jobs have separate retention times."""
    await store.jobs.submit([keyed_job(1)])
    await store.operations.cancel(id_of(1))
    assert await store.operations.prune(0, 10) == 1
    assert await store.jobs.submit([keyed_job(2)]) == [Submitted(id_of(1), replayed=True)]


async def test_a_submission_sent_again_is_stored_once(store: Store) -> None:
    """The reply was lost and the client repeats the request: reply and job must be the first ones."""
    batch = [new_job(1), new_job(2, delay_us=MINUTE_US)]
    first = await store.jobs.submit(batch)
    assert await store.jobs.submit(batch) == first == [Submitted(id_of(1)), Submitted(id_of(2))]
    assert await counts(store) == {"ready": 1, "scheduled": 1}


async def test_a_known_id_changes_nothing_of_the_stored_job(store: Store, clock: FakeClock) -> None:
    """A late repetition must not reset a job that has made progress since."""
    await store.jobs.submit([new_job(1)])
    await ContractWorker(store).claim()
    before = await job_of(store)
    clock.advance(1)
    await store.jobs.submit([new_job(1)])
    assert await job_of(store) == before


async def test_a_known_id_and_new_ones_in_a_batch(store: Store) -> None:
    """A batch may be repeated together with new jobs: only the new ones are stored and counted."""
    await store.jobs.submit([new_job(1)])
    answers = await store.jobs.submit([new_job(1), new_job(2), new_job(3), new_job(2)])
    assert answers == [Submitted(id_of(number)) for number in (1, 2, 3, 2)]
    assert await counts(store) == {"ready": 3}


async def test_a_submission_twice_in_one_batch_is_stored_once_not_never(store: Store) -> None:
    """A client that queues its submission again after a lost reply may send both together, with a key or without."""
    answers = await store.jobs.submit([keyed_job(1), new_job(2), keyed_job(1), new_job(2)])
    assert answers == [Submitted(id_of(number)) for number in (1, 2, 1, 2)]
    assert await ids_in(store) == [id_of(1), id_of(2)]
    assert await counts(store) == {"ready": 2}


async def test_a_submission_with_a_key_sent_again_gets_the_first_answer(store: Store) -> None:
    """`replayed` means that another job holds the key; here it is the same job."""
    assert await store.jobs.submit([keyed_job(1)]) == [Submitted(id_of(1))]
    assert await store.jobs.submit([keyed_job(1)]) == [Submitted(id_of(1))]
    assert await counts(store) == {"ready": 1}


async def test_a_submission_sent_again_after_its_job_finished(store: Store) -> None:
    """A very late repetition must neither run the job again nor get an error."""
    await store.jobs.submit([keyed_job(1)])
    worker = ContractWorker(store)
    await worker.settle(done(await worker.claim_one()))
    assert await store.jobs.submit([keyed_job(1)]) == [Submitted(id_of(1))]
    assert await counts(store) == {"done": 1}


async def test_a_first_try_that_arrives_after_its_repetition_has_run(store: Store) -> None:
    """The request was delayed for longer than its caller waited. A single job without a key may use a separate code
    path.
    """
    job, worker = new_job(1), ContractWorker(store)
    await store.jobs.submit([job])
    await worker.settle(done(await worker.claim_one()))
    assert await store.jobs.submit([job]) == [Submitted(id_of(1))]
    assert await worker.claim(2) == ()
    assert await counts(store) == {"done": 1}


async def test_a_submission_sent_again_after_its_job_was_discarded(store: Store) -> None:
    """The key still names this id, so the job is known although its record is gone."""
    await store.jobs.submit([keyed_job(1)])
    await store.operations.cancel(id_of(1))
    await store.operations.discard(ALL, 10)
    assert await store.jobs.submit([keyed_job(1)]) == [Submitted(id_of(1))]
    assert await ids_in(store) == []


async def test_a_submission_sent_again_after_its_key_went_to_another_job(store: Store, clock: FakeClock) -> None:
    """The id alone shows that the job was stored before; the expired key must not matter."""
    await store.jobs.submit([keyed_job(1)])
    clock.advance_us(HOUR_US)
    await store.jobs.submit([keyed_job(2, fingerprint="other")])
    assert await store.jobs.submit([keyed_job(1)]) == [Submitted(id_of(1))]
    await conflict_of(store.jobs.submit([keyed_job(3)]))
    assert await ids_in(store) == [id_of(1), id_of(2)]


async def test_a_submission_sent_again_does_not_renew_its_expired_key(store: Store, clock: FakeClock) -> None:
    """Nothing is stored again: a renewed key would block a new job for another period."""
    await store.jobs.submit([keyed_job(1)])
    clock.advance_us(HOUR_US)
    assert await store.jobs.submit([keyed_job(1)]) == [Submitted(id_of(1))]
    assert await store.jobs.submit([keyed_job(2)]) == [Submitted(id_of(2))]


async def test_an_empty_batch_is_no_error(store: Store) -> None:
    """A caller with an empty list must not need a special case."""
    assert await store.jobs.submit([]) == []


async def test_a_large_batch_is_stored_whole(store: Store) -> None:
    """Imports submit thousands of shards; limits of the database on statement size must not show."""
    batch = [new_job(number) for number in range(1, 2_001)]
    assert await store.jobs.submit(batch) == [Submitted(job.id) for job in batch]
    assert await counts(store) == {"ready": 2_000}


async def test_a_delayed_job_does_not_start_early(store: Store, clock: FakeClock) -> None:
    """The job must wait at least this long by the store's clock."""
    await store.jobs.submit([new_job(1, delay_us=MINUTE_US)])
    assert await counts(store) == {"scheduled": 1}
    clock.advance_us(MINUTE_US - 1)
    assert await ContractWorker(store).claim() == ()
    clock.advance_us(1)
    assert (await ContractWorker(store).claim_one()).id == id_of(1)


async def test_a_named_time_wins_over_a_delay(store: Store, clock: FakeClock) -> None:
    """An explicit instant is more specific than a delay."""
    run_at = clock.now_us() + MINUTE_US
    await store.jobs.submit([new_job(1, run_at=run_at, delay_us=HOUR_US)])
    assert (await job_of(store)).run_at == run_at


async def test_a_time_that_has_come_is_no_reason_to_wait(store: Store, clock: FakeClock) -> None:
    """Even with an instant long past, the job is only late and must run now."""
    now = clock.now_us()
    await store.jobs.submit([new_job(1, run_at=now), new_job(2, run_at=now - HOUR_US)])
    assert await counts(store) == {"ready": 2}
    assert (await job_of(store, 2)).run_at == now - HOUR_US


async def test_all_that_was_submitted_can_be_read(store: Store, clock: FakeClock) -> None:
    """A field that a store drops would be noticed only by the user who needs it."""
    await store.jobs.submit(
        [
            new_job(
                1,
                kind="geocode",
                payload='{"address":"Łódź, 北京 \\"x\\""}',
                queue="slow",
                tenant="acme",
                priority=-7,
                attempts_max=3,
                lease_us=1_234_567,
                timeout_us=7_654_321,
                delay_us=5,
                shard_key="shard-1",
                cursor='{"page":1}',
            )
        ]
    )
    job = await job_of(store)
    assert (job.kind, job.payload) == ("geocode", '{"address":"Łódź, 北京 \\"x\\""}')
    assert (job.queue, job.tenant, job.priority) == ("slow", "acme", -7)
    assert (job.attempts, job.attempts_max, job.fence) == (0, 3, 0)
    assert (job.lease_us, job.timeout_us) == (1_234_567, 7_654_321)
    assert (job.shard_key, job.cursor) == ("shard-1", '{"page":1}')
    assert (job.created_at, job.run_at) == (clock.now_us(), clock.now_us() + 5)
    assert job.state is State.PENDING
    assert (job.progress, job.result, job.finished_at, job.cancel_requested) == (None, None, None, False)
    assert (job.lease_owner, job.lease_until, job.last_error_code, job.last_error_at) == (None,) * 4


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
GUESSED = Token("guessed")


async def test_the_trace_of_a_job_comes_back_to_its_worker(store: Store) -> None:
    """A worker must report the trace of a job's submission: for a single job, for a batch, and with a key."""
    await store.jobs.submit([new_job(1, trace=TRACE)])
    await store.jobs.submit([new_job(2, trace=TRACE), new_job(3), new_job(4, trace=OTHER)])
    await store.jobs.submit([keyed_job(5, trace=OTHER)])
    leases = [held(lease) for lease in await ContractWorker(store).claim(5)]
    assert await store.jobs.traces(leases) == {id_of(1): TRACE, id_of(2): TRACE, id_of(4): OTHER, id_of(5): OTHER}


async def test_jobs_that_nobody_traces_have_no_trace(store: Store) -> None:
    """An empty list of jobs must give an empty result."""
    lease = await leased_job(store)
    assert await store.jobs.traces([held(lease)]) == {}
    assert await store.jobs.traces([]) == {}


async def test_who_does_not_hold_a_job_is_not_told_its_trace(store: Store, clock: FakeClock) -> None:
    """Ids are not secret, and traces of other callers are confidential."""
    late = await leased_job(store, trace=TRACE)
    assert await store.jobs.traces([HeldLease(late.id, GUESSED, LEASE_US)]) == {}
    clock.advance_us(LEASE_US)
    now = await ContractWorker(store, "other").claim_one()
    assert await store.jobs.traces([held(late)]) == {}
    assert await store.jobs.traces([held(now)]) == {id_of(1): TRACE}


async def test_every_attempt_knows_the_trace(store: Store) -> None:
    """Users look for the attempt that failed, which may be any of them."""
    worker, lease = ContractWorker(store), await leased_job(store, trace=TRACE)
    await worker.settle(retry(lease))
    assert await store.jobs.traces([held(await worker.claim_one())]) == {id_of(1): TRACE}


async def test_a_job_that_a_job_submits_keeps_its_trace(store: Store) -> None:
    """Without it, the trace of a chain of jobs would end at its first job."""
    worker, lease = ContractWorker(store), await leased_job(store)
    await worker.settle(done(lease, children=(new_job(2, trace=OTHER),)))
    assert await store.jobs.traces([held(await worker.claim_one())]) == {id_of(2): OTHER}
