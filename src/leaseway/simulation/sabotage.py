"""Safeguards, switched off one by one: the mutation gate.

A safeguard that no seed needs is dead code or an untested promise. So each entry below removes one, by other SQL or by
another function in its place, never by a flag in the product, and the oracles must notice within a bounded number of
seeds. A sabotage whose text is no longer found in the product's SQL fails loudly: it would prove nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.errors import TransientError, UnknownOutcome
from leaseway.domain.exchange import Exchange, Exchanged
from leaseway.domain.job import Lease, NewJob, Settlement, Submitted
from leaseway.domain.outcome import GivenBack, Outcome, decide
from leaseway.flows import slots
from leaseway.flows import submit as submitting
from leaseway.flows.claim import Claim
from leaseway.flows.keep import Keeper
from leaseway.flows.running import Running, Stop
from leaseway.flows.slots import Slots
from leaseway.flows.worker import Worker
from leaseway.ports.clock import Clock
from leaseway.ports.job_store import JobStore
from leaseway.simulation.process import HERE
from leaseway.stores.sqlite import connection
from leaseway.stores.sqlite.queries import statements
from leaseway.stores.sqlite.transaction import Transaction

SEEDS_MAX = 200
"""Within so many seeds, from the first on, every sabotage must be caught."""


class Sabotage(Struct, frozen=True, kw_only=True):
    removes: str
    """The safeguard that is gone, in one sentence."""
    sql: tuple[tuple[str, str, str], ...] = ()
    """(statement, text in it, text instead)"""
    code: tuple[tuple[Any, str, Any], ...] = ()
    """(owner, name, value instead)"""

    @contextmanager
    def at_work(self) -> Iterator[Mapping[str, str]]:
        """While the body runs, the safeguard is off; the statements to run it with."""
        with ExitStack() as stack:
            for owner, name, value in self.code:
                stack.enter_context(replaced(owner, name, value))
            yield self.statements()

    def statements(self) -> Mapping[str, str]:
        altered = dict(statements())
        for verb, text, instead in self.sql:
            if text not in altered[verb]:
                raise LookupError(f"{verb}.sql does not say {text!r} any more: this sabotage removes nothing")
            altered[verb] = altered[verb].replace(text, instead)
        return altered


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# -- other functions in place of the real ones ----------------------------------------------------------------------


async def leave_without_a_word(worker: Worker) -> None:
    await worker._slots.stop(5.0)
    worker._outbox.take()


async def believe_it_failed(worker: Worker, call: Exchange) -> tuple[Exchanged, float]:
    sent_at = worker._world.clock.monotonic()
    try:
        return await worker._world.store.exchange(call), sent_at
    except TransientError:
        return Exchanged(), sent_at


async def submit_anew(store: JobStore, jobs: Sequence[NewJob], clock: Clock) -> list[Submitted]:
    for _ in range(5):
        try:
            return await store.submit(jobs)
        except UnknownOutcome:
            ids = HERE.get().ids
            jobs = [replace(job, id=ids.job()) for job in jobs]
    return await store.submit(jobs)


async def submit_once_more(store: JobStore, jobs: Sequence[NewJob], clock: Clock) -> list[Submitted]:
    """Lets a refusal of the second try through, as if nothing had been written by the first."""
    try:
        return await store.submit(jobs)
    except UnknownOutcome:
        return await store.submit(jobs)


def decide_without_giving_back(lease: Lease, outcome: Outcome, *rest: Any) -> Settlement | None:
    settlement = decide(lease, outcome, *rest)
    return replace(settlement, gives_back=False) if settlement and isinstance(outcome, GivenBack) else settlement


real_settle = Transaction._settle
real_halt = Slots.halt
real_look = Keeper.look


def settle_with_all_children(transaction: Transaction, settlements: Sequence[Settlement]) -> list[Any]:
    lost = real_settle(transaction, settlements)
    children = [child for each in settlements if each.id in lost for child in each.children]
    if children:
        transaction.submit(children, conflicts_replay=True)
    return lost


def halting_all_but(untold: Stop) -> Callable[[Slots, Running, Stop], None]:
    def halt(slots: Slots, running: Running, why: Stop) -> None:
        if why is not untold:
            real_halt(slots, running, why)

    return halt


def halt_whatever_runs_now(slots: Slots, running: Running, why: Stop) -> None:
    now = slots.running.get(running.lease.id)
    if now is not None:
        real_halt(slots, now, why)


def remove_whatever_runs_now(slots: Slots, running: Running) -> bool:
    slots._plain -= running.is_plain
    return slots.running.pop(running.lease.id, None) is running


async def look_away(keeper: Keeper) -> None: ...


async def leave_the_claim(keeper: Keeper, now: float) -> None: ...


def take_in_any_case(claim: Claim, who: object) -> bool:
    claim._owner = who
    return True


async def look_at_the_willing(keeper: Keeper) -> None:
    everything = keeper._running
    keeper._running = {job: each for job, each in everything.items() if each.stop is None}
    try:
        await real_look(keeper)
    finally:
        keeper._running = everything


def keep_the_half(connection: Any) -> None:
    if connection.in_transaction:
        connection.execute("COMMIT")


SABOTAGES: dict[str, Sabotage] = {
    "settle_any_token": Sabotage(
        removes="settling compares the token, not the state",
        sql=(
            ("settle", "jobs.token = settled.token", "jobs.stage = 2"),
            ("settleable", "jobs.token = :token", "jobs.stage = 2"),
            ("settle_done", "jobs.token = :token", "jobs.stage = 2"),
        ),
    ),
    "renew_any_token": Sabotage(
        removes="renewing compares the token",
        sql=(("renew", "jobs.token = held.token", "jobs.stage = 2"),),
    ),
    "renew_lapsed": Sabotage(
        removes="a lease that has lapsed is not extended",
        sql=(("renew", "AND until > :now", ""),),
    ),
    "checkpoint_any_token": Sabotage(
        removes="a checkpoint compares the token",
        sql=(("checkpoint", "token = :token AND until > :now", "stage = 2"),),
    ),
    "report_any_token": Sabotage(
        removes="a report of progress compares the token",
        sql=(("report", "token = :token", "stage = 2"),),
    ),
    "reclaim_early": Sabotage(
        removes="only expired leases are taken back, checked where they are found and where it is written",
        sql=(
            ("due", "stage = 2 AND until <= :now", "stage = 2"),
            ("expired", "until <= :now", "TRUE"),
            ("reclaim", "until <= :now", "TRUE"),
        ),
    ),
    "attempt_uncounted": Sabotage(
        removes="the attempt is counted when the job is claimed",
        sql=(("claim", "attempts = attempts + 1", "attempts = attempts"),),
    ),
    "fence_unmoved": Sabotage(
        removes="every claim raises the fence",
        sql=(("claim", "fence = fence + 1", "fence = fence"),),
    ),
    "key_forgotten": Sabotage(
        removes="an idempotency key names one job",
        sql=(("key_find", "expires_at > :now", "expires_at > :now AND FALSE"),),
    ),
    "drain_silent": Sabotage(
        removes="a worker that leaves hands its leases back",
        code=((Worker, "_leave", leave_without_a_word),),
    ),
    "drain_counts": Sabotage(
        removes="what a leaving worker gives back costs no attempt",
        code=((slots, "decide", decide_without_giving_back),),
    ),
    "give_back_ignored": Sabotage(
        removes="the store subtracts an attempt that is given back",
        sql=(("settle", "max(attempts - settled.gives_back, 0)", "attempts"),),
    ),
    "unknown_is_failed": Sabotage(
        removes="an exchange whose reply was lost is repeated",
        code=((Worker, "_exchanged", believe_it_failed),),
    ),
    "orphans_left": Sabotage(
        removes="a repeated claim adopts what the first try was granted",
        sql=(("adoptable", "token = :token", "token = :token AND FALSE"),),
    ),
    "repeat_refused": Sabotage(
        removes="a settlement that was accepted is accepted again",
        sql=(("settled_before", "jobs.last_token = sent.value ->> 1", "FALSE"),),
    ),
    "submit_anew": Sabotage(
        removes="a submission whose reply was lost is repeated with the same ids",
        code=((submitting, "submit", submit_anew),),
    ),
    "submit_gives_up": Sabotage(
        removes="after a lost reply, a refusal of the second try does not count as nothing written",
        code=((submitting, "submit", submit_once_more),),
    ),
    "children_anyway": Sabotage(
        removes="children are submitted only with an accepted settlement",
        code=((Transaction, "_settle", settle_with_all_children),),
    ),
    "cron_by_everybody": Sabotage(
        removes="a schedule is moved by one process, and the job's key carries the fire time",
        sql=(
            ("schedule_fire", "seen = :seen", "TRUE"),
            ("key_find", "key = :key", "key = :key AND key NOT LIKE 'cron:%'"),
        ),
    ),
    "cancel_lost_at_settle": Sabotage(
        removes="a job that is to be cancelled is not made pending by a settlement",
        sql=(("settle", "settled.stage < 2 AND cancel_requested", "FALSE"),),
    ),
    "cancel_lost_at_expiry": Sabotage(
        removes="a job that is to be cancelled does not come back when its lease expires",
        sql=(("expired", "attempts_max, cancel_requested", "attempts_max, 0"),),
    ),
    "cancel_untold": Sabotage(
        removes="a worker stops a handler whose job was cancelled",
        code=((Slots, "halt", halting_all_but(Stop.CANCELLED)),),
    ),
    "loss_untold": Sabotage(
        removes="a worker stops a handler whose lease is lost",
        code=((Slots, "halt", halting_all_but(Stop.LOST)),),
    ),
    "loss_told_to_the_next": Sabotage(
        removes="a lost lease stops its own attempt, not the job's next one in the same worker",
        code=((Slots, "halt", halt_whatever_runs_now),),
    ),
    "end_ends_the_next": Sabotage(
        removes="an attempt that ends late leaves the job's next one in the same worker alone",
        code=((Slots, "_remove", remove_whatever_runs_now),),
    ),
    "unrenewed": Sabotage(
        removes="leases of running jobs are renewed",
        code=((Keeper, "look", look_away),),
    ),
    "unrenewed_while_stopping": Sabotage(
        removes="a handler that needs a while to stop keeps its lease meanwhile",
        code=((Keeper, "look", look_at_the_willing),),
    ),
    "claim_unkept": Sabotage(
        removes="what a claim was granted is kept, and given back, while its reply does not come",
        code=((Keeper, "_keep_claim", leave_the_claim),),
    ),
    "claim_for_both": Sabotage(
        removes="of a claim that the keeper gave back the worker runs nothing",
        code=((Claim, "take", take_in_any_case),),
    ),
    "counters_uncounted": Sabotage(
        removes="every move of a job is counted in its lane",
        sql=(("lane_count", "leased = leased + ?", "leased = leased + 0 * ?"),),
    ),
    "start_early": Sabotage(
        removes="a scheduled job waits for its time",
        sql=(("due", "run_at <= :now", "TRUE"), ("promote", "run_at <= :now", "TRUE")),
    ),
    "half_a_transaction": Sabotage(
        removes="a transaction that fails in the middle leaves nothing behind",
        code=((connection, "roll_back", keep_the_half),),
    ),
}
