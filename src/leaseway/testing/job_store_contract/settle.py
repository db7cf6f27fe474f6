"""Settlement: one accepted result per job. A late settlement is refused and leaves no trace."""

from leaseway.domain.exchange import ERRORS_MAX
from leaseway.domain.ids import Token
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import ErrorRecord, State
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    BROKEN,
    HOUR_US,
    LEASE_US,
    MINUTE_US,
    ContractWorker,
    counts,
    done,
    failed,
    id_of,
    ids_in,
    job_of,
    keyed_job,
    leased_job,
    new_job,
    retry,
    snooze,
)


async def test_a_late_worker_cannot_settle_a_reclaimed_job(store: Store, clock: FakeClock) -> None:
    """Two workers must never both believe that they finished one attempt."""
    late = await leased_job(store)
    clock.advance_us(LEASE_US)
    quick = await ContractWorker(store, "quick").claim_one()
    before = await job_of(store)
    assert (await ContractWorker(store).settle(done(late, result='"late"'))).lost == (id_of(1),)
    assert await job_of(store) == before
    assert (await ContractWorker(store, "quick").settle(done(quick))).lost == ()
    assert (await job_of(store)).result == '"well"'


async def test_a_late_worker_cannot_settle_a_job_that_waits_again(store: Store, clock: FakeClock) -> None:
    """A reclaimed job without a holder has no token at all, which must not match anything."""
    late = await leased_job(store)
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").settle()
    before = await job_of(store)
    assert (await ContractWorker(store).settle(done(late))).lost == (id_of(1),)
    assert await job_of(store) == before
    assert await counts(store) == {"ready": 1}


async def test_a_foreign_token_is_refused(store: Store) -> None:
    """Ids appear in every log; only the token proves the lease."""
    lease = await leased_job(store)
    before = await job_of(store)
    answer = await ContractWorker(store).settle(done(lease, token=Token("guessed")))
    assert answer.lost == (id_of(1),)
    assert await job_of(store) == before


async def test_a_token_counts_only_for_its_own_job(store: Store) -> None:
    """Leases of one claim share a token, those of different claims do not."""
    await store.jobs.submit([new_job(1), new_job(2)])
    worker = ContractWorker(store)
    first, second = await worker.claim_one(), await worker.claim_one()
    assert (await worker.settle(done(first, token=second.token))).lost == (id_of(1),)


async def test_settling_a_job_that_nobody_knows_is_lost(store: Store) -> None:
    """The job was discarded meanwhile, or the store is another one: the worker must get a result instead of an
    error.
    """
    lease = await leased_job(store)
    assert (await ContractWorker(store).settle(done(lease, id=id_of(99)))).lost == (id_of(99),)


async def test_lost_settlements_do_not_stop_the_others(store: Store) -> None:
    """One late job must not cost a worker all other results, and the order must show which ones were lost."""
    await store.jobs.submit([new_job(number) for number in range(1, 5)])
    worker = ContractWorker(store)
    one, two, three, four = await worker.claim(4)
    guessed = Token("guessed")
    answer = await worker.settle(done(four, token=guessed), done(one), done(two, token=guessed), done(three))
    assert answer.lost == (id_of(4), id_of(2))
    assert await counts(store) == {"leased": 2, "done": 2}


async def test_a_lost_result_does_not_hide_behind_the_new_one(store: Store, clock: FakeClock) -> None:
    """A worker reclaimed a job that it had lost: there are two handlers and two results, and one of them is late."""
    old = await leased_job(store)
    clock.advance_us(LEASE_US)
    new = await ContractWorker(store).claim_one()
    answer = await ContractWorker(store).settle(done(old, result='"old"'), done(new, result='"new"'))
    assert answer.lost == (id_of(1),)
    assert (await job_of(store)).result == '"new"'
    assert await counts(store) == {"done": 1}


async def test_a_refused_settlement_leaves_no_children_and_no_errors(store: Store) -> None:
    """The children of a refused result would be jobs that no accepted result submitted."""
    lease = await leased_job(store)
    refused = failed(lease, token=Token("guessed"), children=(new_job(2),), progress='"half"')
    await ContractWorker(store).settle(refused)
    assert await ids_in(store) == [id_of(1)]
    assert await store.reads.errors(id_of(1)) == []
    assert (await job_of(store)).progress is None


async def test_a_settlement_sent_again_is_accepted_and_writes_nothing(store: Store, clock: FakeClock) -> None:
    """The reply was lost; a worker that gets "lost" would report a failure that did not happen."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(done(lease))
    before = await job_of(store)
    clock.advance(1)
    assert (await ContractWorker(store).settle(done(lease))).lost == ()
    assert await job_of(store) == before
    assert await counts(store) == {"done": 1}


async def test_a_settlement_sent_again_submits_its_children_once(store: Store) -> None:
    """Children are part of the result, which counts once, even if a child was deleted meanwhile."""
    lease = await leased_job(store)
    settlement = done(lease, children=(new_job(2),))
    await ContractWorker(store).settle(settlement)
    await store.operations.cancel(id_of(2))
    await store.operations.discard(JobFilter(ids=(id_of(2),)), 1)
    assert (await ContractWorker(store).settle(settlement)).lost == ()
    assert await ids_in(store) == [id_of(1)]


async def test_a_failure_sent_again_is_remembered_once(store: Store) -> None:
    """Repeated errors in the list would mislead the reader."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(retry(lease, delay_us=MINUTE_US))
    assert (await ContractWorker(store).settle(retry(lease, delay_us=MINUTE_US))).lost == ()
    assert len(await store.reads.errors(id_of(1))) == 1
    assert await counts(store) == {"scheduled": 1}


async def test_a_settlement_twice_in_one_exchange_counts_once(store: Store) -> None:
    """A worker that queues a result again after an unknown outcome may send both together."""
    lease = await leased_job(store)
    answer = await ContractWorker(store).settle(retry(lease), retry(lease))
    assert answer.lost == ()
    assert len(await store.reads.errors(id_of(1))) == 1
    assert await counts(store) == {"ready": 1}


async def test_a_settlement_sent_again_does_not_disturb_the_next_lease(store: Store) -> None:
    """The job was released, another worker holds it now, and then the first settlement arrives again."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(retry(lease))
    await ContractWorker(store, "next").claim_one()
    before = await job_of(store)
    assert (await ContractWorker(store).settle(retry(lease))).lost == ()
    assert await job_of(store) == before


async def test_a_lapsed_lease_does_not_make_an_accepted_settlement_lost(store: Store, clock: FakeClock) -> None:
    """The next holder crashed without settling, so the last accepted settlement is still the first one."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(retry(lease))
    await ContractWorker(store, "next").claim_one()
    clock.advance_us(LEASE_US)
    await ContractWorker(store, "other").settle()
    assert (await ContractWorker(store).settle(retry(lease))).lost == ()


async def test_only_the_last_accepted_settlement_is_known_again(store: Store) -> None:
    """Only one token is stored per job: an older one is refused, which is safe."""
    first = await leased_job(store)
    await ContractWorker(store).settle(retry(first))
    second = await ContractWorker(store, "next").claim_one()
    await ContractWorker(store, "next").settle(retry(second))
    assert (await ContractWorker(store).settle(retry(first))).lost == (id_of(1),)


async def test_a_token_that_is_granted_again_forgets_its_first_settlement(store: Store, clock: FakeClock) -> None:
    """A delayed copy of a claim arrives after its job was released, so two leases of the job have one token. The
    second lease expires and another worker holds the job: an answer that accepts the settlement of the second lease
    would drop its result without a report.
    """
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    wants = worker.wants()
    (first,) = (await worker.exchange(wants=wants)).leases
    await worker.settle(snooze(first))
    (second,) = (await worker.exchange(wants=wants, repeat=True)).leases
    assert (second.token, second.fence) == (first.token, first.fence + 1)
    clock.advance_us(LEASE_US)
    assert (await ContractWorker(store, "next").claim_one()).id == id_of(1)
    before = await job_of(store)
    assert (await worker.settle(done(second))).lost == (id_of(1),)
    assert await job_of(store) == before


async def test_a_late_worker_whom_nobody_overtook_is_accepted(store: Store, clock: FakeClock) -> None:
    """The work is done and no other worker has started it, so doing it again would be a waste."""
    lease = await leased_job(store)
    clock.advance_us(HOUR_US)
    assert (await ContractWorker(store).settle(done(lease))).lost == ()
    assert (await job_of(store)).state is State.DONE
    assert await store.reads.errors(id_of(1)) == []


async def test_a_done_job_keeps_its_result_and_frees_its_lease(store: Store, clock: FakeClock) -> None:
    """The record must show the end, the result, and that the lease is gone."""
    lease = await leased_job(store)
    clock.advance(3)
    await ContractWorker(store).settle(done(lease, progress='"all"'))
    job = await job_of(store)
    assert (job.state, job.result, job.finished_at) == (State.DONE, '"well"', clock.now_us())
    assert (job.lease_owner, job.lease_until) == (None, None)
    assert (job.attempts, job.fence, job.progress) == (1, 1, '"all"')
    assert await counts(store) == {"done": 1}


async def test_a_failed_job_says_why(store: Store, clock: FakeClock) -> None:
    """An operator reads the dead letter and needs code, message, traceback and time."""
    lease = await leased_job(store)
    clock.advance(3)
    await ContractWorker(store).settle(failed(lease))
    job = await job_of(store)
    assert (job.state, job.finished_at) == (State.FAILED, clock.now_us())
    assert (job.last_error_code, job.last_error_at) == ("broken", clock.now_us())
    assert await store.reads.errors(id_of(1)) == [
        ErrorRecord(
            job=id_of(1),
            attempt=1,
            at=clock.now_us(),
            code=BROKEN.code,
            message=BROKEN.message,
            traceback=BROKEN.traceback,
        )
    ]
    assert await counts(store) == {"failed": 1}


async def test_a_release_may_say_why(store: Store, clock: FakeClock) -> None:
    """A worker that lacks the key of an encrypted job does not use its attempt, and operators must learn the reason."""
    for worker in ("one", "two"):
        lease = await leased_job(store) if worker == "one" else await ContractWorker(store, worker).claim_one()
        assert lease.attempts == 1
        await ContractWorker(store, worker).settle(snooze(lease, delay_us=MINUTE_US, failure=BROKEN))
        job = await job_of(store)
        assert (job.state, job.attempts, job.last_error_code) == (State.PENDING, 0, BROKEN.code)
        clock.advance_us(MINUTE_US)
    assert [(error.attempt, error.code) for error in await store.reads.errors(id_of(1))] == [(1, BROKEN.code)] * 2


async def test_a_retry_waits_by_the_clock_of_the_store(store: Store, clock: FakeClock) -> None:
    """Workers send durations, because their clocks differ."""
    lease = await leased_job(store)
    clock.advance(3)
    await ContractWorker(store).settle(retry(lease, delay_us=MINUTE_US))
    job = await job_of(store)
    assert (job.state, job.run_at) == (State.PENDING, clock.now_us() + MINUTE_US)
    assert (job.finished_at, job.attempts) == (None, 1)
    assert await counts(store) == {"scheduled": 1}
    clock.advance_us(MINUTE_US - 1)
    assert await ContractWorker(store).claim() == ()
    clock.advance_us(1)
    assert (await ContractWorker(store, "next").claim_one()).attempts == 2


async def test_a_snoozed_job_gets_its_attempt_back(store: Store, clock: FakeClock) -> None:
    """Waiting for a limit is not the job's failure, however often it happens."""
    lease = await leased_job(store, attempts_max=1)
    run_at = clock.now_us() + MINUTE_US
    await ContractWorker(store).settle(snooze(lease, run_at=run_at, delay_us=HOUR_US))
    job = await job_of(store)
    assert (job.state, job.attempts, job.run_at) == (State.PENDING, 0, run_at)
    assert (job.last_error_code, await store.reads.errors(id_of(1))) == (None, [])


async def test_the_fence_never_falls(store: Store) -> None:
    """External systems compare fences: a returned attempt must not let an old writer look new."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(snooze(lease))
    again = await ContractWorker(store, "next").claim_one()
    assert (again.attempts, again.fence) == (1, 2)


async def test_a_failure_is_remembered_with_the_attempt_it_had(store: Store) -> None:
    """The record must show which delivery failed, even if that delivery does not count as an attempt."""
    lease = await leased_job(store)
    await ContractWorker(store).settle(snooze(lease, failure=BROKEN))
    assert [error.attempt for error in await store.reads.errors(id_of(1))] == [1]
    assert (await job_of(store)).attempts == 0


async def test_errors_are_kept_in_order_and_bounded(store: Store) -> None:
    """A job that fails for weeks must not fill the disk; the newest failures are the useful ones."""
    await store.jobs.submit([new_job(1, attempts_max=100)])
    worker = ContractWorker(store)
    for _ in range(ERRORS_MAX + 3):
        await worker.settle(retry(await worker.claim_one()))
    attempts = [error.attempt for error in await store.reads.errors(id_of(1))]
    assert attempts == list(range(4, ERRORS_MAX + 4))


async def test_several_failures_in_one_exchange_stay_apart(store: Store) -> None:
    """Batches are written together, and each job must keep its own errors only."""
    await store.jobs.submit([new_job(1), new_job(2), new_job(3)])
    worker = ContractWorker(store)
    one, two, three = await worker.claim(3)
    await worker.settle(retry(one), done(two), failed(three))
    found = [[error.job for error in await store.reads.errors(id_of(number))] for number in (1, 2, 3)]
    assert found == [[id_of(1)], [], [id_of(3)]]
    assert await counts(store) == {"ready": 1, "done": 1, "failed": 1}


async def test_a_success_does_not_hide_earlier_failures(store: Store) -> None:
    """The owner of a job wants to know that it needed three attempts."""
    lease = await leased_job(store)
    worker = ContractWorker(store, "next")
    await worker.settle(retry(lease))
    await worker.settle(done(await worker.claim_one()))
    job = await job_of(store)
    assert (job.state, job.last_error_code) == (State.DONE, "broken")


async def test_progress_is_not_erased_by_a_settlement_without_any(store: Store) -> None:
    """None means no new progress."""
    lease = await leased_job(store)
    worker = ContractWorker(store, "next")
    await worker.settle(retry(lease, progress='"half"'))
    await worker.settle(retry(await worker.claim_one()))
    assert (await job_of(store)).progress == '"half"'


async def test_children_are_submitted_with_the_settlement(store: Store, clock: FakeClock) -> None:
    """A parent that is done without its children stored would be lost work."""
    lease = await leased_job(store)
    clock.advance(1)
    children = (new_job(2, tenant="acme"), new_job(3, delay_us=MINUTE_US))
    await ContractWorker(store).settle(done(lease, children=children))
    assert await ids_in(store) == [id_of(1), id_of(2), id_of(3)]
    assert await counts(store, tenant="acme") == {"ready": 1}
    assert await counts(store) == {"scheduled": 1, "done": 1}
    assert (await job_of(store, 3)).run_at == clock.now_us() + MINUTE_US


async def test_children_may_be_claimed_by_the_same_exchange(store: Store) -> None:
    """A chain of jobs must not wait for a poll between two jobs."""
    lease = await leased_job(store)
    worker = ContractWorker(store)
    answer = await worker.exchange(done(lease, children=(new_job(2),)), wants=worker.wants())
    assert [lease.id for lease in answer.leases] == [id_of(2)]


async def test_a_child_with_a_known_key_is_not_stored(store: Store) -> None:
    """No caller is left to be told about the conflict: the key prevents the duplicate, and the parent's result
    stands.
    """
    await store.jobs.submit([keyed_job(9, tenant="acme", delay_us=MINUTE_US)])
    lease = await leased_job(store)
    children = (
        keyed_job(2, tenant="acme"),
        keyed_job(3, tenant="acme", fingerprint="other"),
        new_job(4, tenant="acme"),
    )
    answer = await ContractWorker(store).settle(done(lease, children=children))
    assert answer.lost == ()
    assert await ids_in(store) == [id_of(1), id_of(4), id_of(9)]
    assert (await job_of(store)).state is State.DONE


async def test_a_child_that_is_known_is_not_stored_again(store: Store) -> None:
    """A retried parent computes the same children again; the existing ones must not start over."""
    await store.jobs.submit([new_job(2, queue="elsewhere")])
    lease = await leased_job(store)
    await ContractWorker(store).settle(done(lease, children=(new_job(2, queue="elsewhere"), new_job(3))))
    assert await counts(store, queue="elsewhere") == {"ready": 1}
    assert await counts(store) == {"ready": 1, "done": 1}
