"""Safeguards, removed one by one: the mutation gate.

A safeguard that no seed needs is dead code or an untested promise. Each entry below removes one, by other SQL or by
another function in its place, never by a flag in the product, and the oracles must notice within a bounded number of
seeds. A sabotage whose text is no longer found in the product's SQL raises an error: it would prove nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.budgets import holds, rebooking
from leaseway.domain.budgets.balances import Balance, Evidence
from leaseway.domain.budgets.budget import HoldAnswer, HoldGranted, HoldUsed
from leaseway.domain.budgets.holds import Hold, HoldState, HoldStep, LineRequest, Lines, void_hold
from leaseway.domain.budgets.rebooking import hold_id
from leaseway.domain.errors import TransientError, UnknownOutcome
from leaseway.domain.exchange import Exchange, ExchangeReply
from leaseway.domain.ids import Instant
from leaseway.domain.job import Lease, NewJob, Settlement, Submitted
from leaseway.domain.limits import buckets, throttling
from leaseway.domain.limits.breaker import apply_call
from leaseway.domain.limits.buckets import IDLE_US, Acquisition, Granted, Notice
from leaseway.domain.limits.level import Breaker, Level
from leaseway.domain.limits.limit import PermitRequest, Sizing
from leaseway.domain.outcome import Outcome, Released, Snoozed, decide
from leaseway.ports.clock import Clock
from leaseway.ports.job_store import JobStore
from leaseway.ports.ledger import BudgetReads, HoldRequest
from leaseway.simulation.process import HERE
from leaseway.stores.memory import budgets as memory_ledger
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.stores.sqlite import connection
from leaseway.stores.sqlite import jobs as sqlite_jobs
from leaseway.stores.sqlite.database import Transaction, statements
from leaseway.worker import settle
from leaseway.worker import submit as submitting
from leaseway.worker.admission import Admission
from leaseway.worker.calls.call_needs import CallNeeds
from leaseway.worker.lease_renewal import LeaseRenewal
from leaseway.worker.ledger_client import HoldIds, JobHold, UnsettledHolds
from leaseway.worker.limiter_client import LimiterClient
from leaseway.worker.loop import Worker
from leaseway.worker.permit_queue import GateState, PermitQueue
from leaseway.worker.provider_calls import ProviderCalls
from leaseway.worker.run_handler import HandlerRunner
from leaseway.worker.settle import Attempt, Stop
from leaseway.worker.slots import Claim, Slots

SEEDS_MAX = 200
"""Every sabotage must be detected within this many seeds, counted from its first."""


class Sabotage(Struct, frozen=True, kw_only=True):
    scenario: str = "jobs"
    """The scenario that detects it."""
    first: int = 0
    """The first seed to run. It is one that detected the sabotage, because a search from seed 0 takes long."""
    removes: str
    """The safeguard that is removed, in one sentence."""
    sql: tuple[tuple[str, str, str], ...] = ()
    """(statement, text in it, replacement)"""
    code: tuple[tuple[Any, str, Any], ...] = ()
    """(owner, name, replacement)"""

    @contextmanager
    def at_work(self) -> Iterator[Mapping[str, str]]:
        """Removes the safeguard while the body runs; yields the statements to run with."""
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
    if not hasattr(owner, name):
        raise LookupError(f"{owner} has no {name} any more: this sabotage removes nothing")
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# -- replacement functions
# ----------------------------------------------------------------------------------------------


async def leave_without_a_word(worker: Worker) -> None:
    await worker._slots.stop(5.0)
    worker._settlements.take()


async def believe_it_failed(worker: Worker, call: Exchange) -> tuple[ExchangeReply, float]:
    sent_at = worker._environment.clock.monotonic()
    try:
        return await worker._environment.store.jobs.exchange(call), sent_at
    except TransientError:
        return ExchangeReply(), sent_at


async def submit_anew(
    store: JobStore, jobs: Sequence[NewJob], clock: Clock, unknown: UnknownOutcome | None = None
) -> list[Submitted]:
    for _ in range(5):
        try:
            return await store.submit(jobs)
        except UnknownOutcome:
            ids = HERE.get().ids
            jobs = [replace(job, id=ids.job()) for job in jobs]
    return await store.submit(jobs)


async def submit_once_more(
    store: JobStore, jobs: Sequence[NewJob], clock: Clock, unknown: UnknownOutcome | None = None
) -> list[Submitted]:
    """Raises the refusal of the second try, as if the first had written nothing."""
    try:
        return await store.submit(jobs)
    except UnknownOutcome:
        return await store.submit(jobs)


def decide_without_giving_back(lease: Lease, outcome: Outcome, *rest: Any) -> Settlement | None:
    settlement = decide(lease, outcome, *rest)
    return replace(settlement, returns_attempt=False) if settlement and isinstance(outcome, Released) else settlement


real_settle = sqlite_jobs.settle
real_halt = Slots.halt
real_put = Slots.put
real_look = LeaseRenewal.check


def settle_with_all_children(transaction: Transaction, settlements: Sequence[Settlement]) -> list[Any]:
    lost = real_settle(transaction, settlements)
    children = [child for each in settlements if each.id in lost for child in each.children]
    if children:
        sqlite_jobs.submit(transaction, children, ignore_conflicts=True)
    return lost


def halting_all_but(untold: Stop) -> Callable[[Slots, Attempt, Stop], None]:
    def halt(slots: Slots, running: Attempt, why: Stop) -> None:
        if why is not untold:
            real_halt(slots, running, why)

    return halt


def halt_whatever_runs_now(slots: Slots, running: Attempt, why: Stop) -> None:
    now = slots.running.get(running.lease.id)
    if now is not None:
        real_halt(slots, now, why)


def remove_whatever_runs_now(slots: Slots, running: Attempt) -> bool:
    slots._sync_running -= running.is_sync
    return slots.running.pop(running.lease.id, None) is running


async def look_away(keeper: LeaseRenewal) -> None: ...


async def leave_the_claim(keeper: LeaseRenewal, now: float) -> None: ...


def take_in_any_case(claim: Claim, who: object) -> bool:
    claim._owner = who
    return True


async def look_at_the_willing(keeper: LeaseRenewal) -> None:
    everything = keeper.running
    keeper.running = {job: each for job, each in everything.items() if each.stop is None}
    try:
        await real_look(keeper)
    finally:
        keeper.running = everything


def put_as_old_as_the_claim(slots: Slots, claim: Claim, claimed: Iterable[Attempt]) -> None:
    claim.renewed = (claim.sent_at, frozenset())
    real_put(slots, claim, claimed)


def begin_whenever(runner: HandlerRunner, attempt: Attempt, call: Callable[[], Any]) -> Any:
    return call()


def keep_the_half(connection: Any) -> None:
    if connection.in_transaction:
        connection.execute("COMMIT")


# -- limits, budgets and tenants ------------------------------------------------------------------------------------

real_seated = Admission.assign
real_credited = buckets.credit_unused
real_paced = buckets.repace
real_hold_again = holds.repeat_hold
real_hold = MemoryLedger._hold
real_correct_hold = holds.correct_hold


def good_for_ever(tokens: LimiterClient, token: Any) -> bool:
    return True


def returned_in_full(taking: Acquisition, now: Instant, granted: Granted, unused: int) -> Level:
    """Returned permits do not age: the bucket was full meanwhile, and they are added on top."""
    return real_credited(taking, granted.granted_at, granted, unused)


def full_after_the_fence(level: Level, sizing: Sizing, now: Instant) -> Level:
    long_ago = replace(level, since=level.since - IDLE_US)
    return replace(real_paced(long_ago, sizing, now), since=level.since)


def fits_what_is_spent(want: LineRequest, book: Balance | None) -> bool:
    """Checks what is spent and ignores what others hold."""
    spent = 0 if book is None else book.spent_micros
    return spent + want.amount_micros <= want.definition.most_micros


def hold_without_dispatch(ledger: MemoryLedger, request: HoldRequest) -> HoldAnswer:
    return real_hold(ledger, replace(request, dispatch=False))


def costs_if_said(hold: Hold, actuals: Mapping[str, int]) -> list[int]:
    return [actuals.get(line.name, 0) for line in hold.lines]


def void_when_late(hold: Hold) -> HoldStep:
    return void_hold(hold, "expire")


def hold_whoever_asks(
    hold: Hold, lines: Lines, owner: str, dispatch: bool, now: Instant
) -> tuple[HoldAnswer, HoldStep] | None:
    again = real_hold_again(hold, lines, owner, dispatch, now)
    if again is None or not isinstance(again[0], HoldUsed):
        return again
    return HoldGranted(tuple(line.window for line in hold.lines), hold.deadline), again[1]


async def take_id_of_attempt(ids: HoldIds, ledger: BudgetReads) -> str:
    """All deliveries of an attempt use the same ids."""
    ids._free = ids._free or []
    if ids._free:
        return ids._free.pop(0)
    ids._number += 1
    return hold_id(ids._lease.tenant, ids._lease.id, ids._lease.attempts, ids._number)


async def leave_the_place(calls: ProviderCalls, why: str, seconds: float, *, by_limit: bool) -> bool:
    return False


async def wait_for_limiter(queue: PermitQueue, failures: int, until: float, error: TransientError) -> None:
    await queue._limiter.sleep(0.2)


async def wait_for_ledger(
    calls: ProviderCalls, hold: str | None, needs: CallNeeds, failures: int, until: float, error: TransientError
) -> None:
    await calls._environment.clock.sleep(0.2)


def correct_again(hold: Hold, actuals: Mapping[str, int], evidence: Evidence, now: Instant) -> Any:
    return real_correct_hold(replace(hold, state=HoldState.CAPTURED, corrected_by=""), actuals, evidence, now)


async def keep_nothing(tokens: LimiterClient, recount: Callable[[], Mapping[PermitRequest, int]]) -> None: ...


def seated_and_up_again(admission: Admission, claimed: Iterable[Attempt]) -> list[Attempt]:
    jobs = real_seated(admission, claimed)
    for running in jobs:
        if running.tenant_permit is not None:
            admission._ended.append(running.tenant_permit)
            running.tenant_permit = None
    return jobs


def asks_without_the_tenant(admission: Admission, door: GateState) -> tuple[PermitRequest, ...]:
    return door.requests


def apply_late_call(before: Breaker, threshold: int | None, notice: Notice, now: Instant) -> Breaker:
    return apply_call(before, threshold, replace(notice, circuit=before.number), now)


def shrug_at_refusals(taking: Acquisition, level: Level, notice: Notice, now: Instant) -> Level:
    return level


def decide_counting_waits(lease: Lease, outcome: Outcome, *rest: Any) -> Settlement | None:
    settlement = decide(lease, outcome, *rest)
    return replace(settlement, returns_attempt=False) if settlement and isinstance(outcome, Snoozed) else settlement


SABOTAGES: dict[str, Sabotage] = {
    "settle_any_token": Sabotage(
        first=1,
        removes="settling compares the token, not the state",
        sql=(
            ("settle", "jobs.token = settled.token", "jobs.state = 'leased'"),
            ("settleable", "job_sizes.token = :token", "job_sizes.token IS NOT NULL"),
            ("settle_done", "jobs.token = :token", "jobs.state = 'leased'"),
        ),
    ),
    "renew_any_token": Sabotage(
        removes="renewing compares the token",
        sql=(("renew", "jobs.token = held.token", "jobs.state = 'leased'"),),
    ),
    "renew_lapsed": Sabotage(
        first=2,
        removes="a lease that has lapsed is not extended",
        sql=(("renew", "AND until > :now", ""),),
    ),
    "checkpoint_any_token": Sabotage(
        first=10,
        removes="a checkpoint compares the token",
        sql=(("checkpoint", "token = :token AND until > :now", "state = 'leased'"),),
    ),
    "report_any_token": Sabotage(
        first=60,
        removes="a report of progress compares the token",
        sql=(("report", "token = :token", "state = 'leased'"),),
    ),
    "reclaim_early": Sabotage(
        removes="only expired leases are taken back, checked where they are found and where it is written",
        sql=(
            ("due", "state = 'leased' AND until <= :now", "state = 'leased'"),
            ("expired", "until <= :now", "TRUE"),
            ("reclaim", "until <= :now", "TRUE"),
        ),
    ),
    "lane_stays_closed": Sabotage(
        scenario="metered",
        removes="a lane that a worker has closed opens at its time, for every worker",
        sql=(("lanes_reopen", "closed_until <= :now", "closed_until <= :now AND FALSE"),),
    ),
    "lane_closed_for_good": Sabotage(
        scenario="metered",
        removes="a lane is closed for as long as the limiter said, and a poll knows when it opens",
        sql=(
            ("lanes_close", "closed_until = gate.until", "closed_until = gate.until + 3600000000"),
            ("wait", "min(closed_until)", "NULL"),
        ),
    ),
    "attempt_uncounted": Sabotage(
        removes="the attempt is counted when the job is claimed",
        sql=(("claim", "attempts = min(attempts + 1, ", "attempts = min(attempts, "),),
    ),
    "fence_unmoved": Sabotage(
        removes="every claim raises the fence",
        sql=(("claim", "fence = min(fence + 1, ", "fence = min(fence, "),),
    ),
    "key_forgotten": Sabotage(
        removes="an idempotency key names one job",
        sql=(("key_find", "expires_at > :now", "expires_at > :now AND FALSE"),),
    ),
    "drain_silent": Sabotage(
        first=5,
        removes="a worker that leaves hands its leases back",
        code=((Worker, "_leave", leave_without_a_word),),
    ),
    "drain_counts": Sabotage(
        first=7,
        removes="what a leaving worker gives back costs no attempt",
        code=((settle, "decide", decide_without_giving_back),),
    ),
    "give_back_ignored": Sabotage(
        removes="the store subtracts an attempt that is given back",
        sql=(("settle", "max(attempts - settled.returns_attempt, 0)", "attempts"),),
    ),
    "unknown_is_failed": Sabotage(
        first=1,
        removes="an exchange whose reply was lost is repeated",
        code=((Worker, "_send", believe_it_failed),),
    ),
    "orphans_left": Sabotage(
        first=1,
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
        first=5,
        removes="after a lost reply, a refusal of the second try does not count as nothing written",
        code=((submitting, "submit", submit_once_more),),
    ),
    "children_anyway": Sabotage(
        first=24,
        removes="children are submitted only with an accepted settlement",
        code=((sqlite_jobs, "settle", settle_with_all_children),),
    ),
    "cron_by_everybody": Sabotage(
        first=1,
        removes="a schedule is moved by one process, and the job's key carries the fire time",
        sql=(
            ("schedule_fire", "seen = :seen", "TRUE"),
            ("key_find", "key = :key", "key = :key AND key NOT LIKE 'cron:%'"),
        ),
    ),
    "cancel_lost_at_settle": Sabotage(
        first=33,
        removes="a job that is to be cancelled is not made pending by a settlement",
        sql=(("settle", "settled.state IN ('ready', 'scheduled') AND cancel_requested", "FALSE"),),
    ),
    "cancel_lost_at_expiry": Sabotage(
        removes="a job that is to be cancelled does not come back when its lease expires",
        sql=(("expired", "attempts_max, cancel_requested", "attempts_max, 0"),),
    ),
    "cancel_untold": Sabotage(
        first=6,
        removes="a worker stops a handler whose job was cancelled",
        code=((Slots, "halt", halting_all_but(Stop.CANCELLED)),),
    ),
    "loss_untold": Sabotage(
        first=6,
        removes="a worker stops a handler whose lease is lost",
        code=((Slots, "halt", halting_all_but(Stop.LOST)),),
    ),
    "loss_told_to_the_next": Sabotage(
        first=16,
        removes="a lost lease stops its own attempt, not the job's next one in the same worker",
        code=((Slots, "halt", halt_whatever_runs_now),),
    ),
    "end_ends_the_next": Sabotage(
        first=16,
        removes="an attempt that ends late leaves the job's next one in the same worker alone",
        code=((Slots, "_remove", remove_whatever_runs_now),),
    ),
    "unrenewed": Sabotage(
        first=1,
        removes="leases of running jobs are renewed",
        code=((LeaseRenewal, "check", look_away),),
    ),
    "unrenewed_while_stopping": Sabotage(
        first=22,
        removes="a handler that needs a while to stop keeps its lease meanwhile",
        code=((LeaseRenewal, "check", look_at_the_willing),),
    ),
    "claim_unkept": Sabotage(
        first=9,
        removes="what a claim was granted is kept, and given back, while its reply does not come",
        code=((LeaseRenewal, "_check_claim", leave_the_claim),),
    ),
    "claim_for_both": Sabotage(
        first=123,
        removes="of a claim that the keeper gave back the worker runs nothing",
        code=((Claim, "take", take_in_any_case),),
    ),
    "late_lease_looks_old": Sabotage(
        first=1_329,
        removes="a lease whose reply comes late is as old as its last renewal",
        code=((Slots, "put", put_as_old_as_the_claim),),
    ),
    "start_whenever": Sabotage(
        first=12,
        removes="a handler does not begin on a lease that is too old",
        code=((HandlerRunner, "_begin", begin_whenever),),
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
    "token_unchecked": Sabotage(
        scenario="metered",
        first=157,
        removes="a request leaves only with a token that is still good",
        code=((LimiterClient, "is_valid", good_for_ever),),
    ),
    "token_returned_in_full": Sabotage(
        scenario="metered",
        first=320,
        removes="tokens that are given back are worth less with their age",
        code=((buckets, "credit_unused", returned_in_full),),
    ),
    "restart_trusted": Sabotage(
        scenario="metered",
        first=428,
        removes="after a restart of the limiter every bucket is empty",
        code=((buckets, "repace", full_after_the_fence),),
    ),
    "refusal_ignored": Sabotage(
        scenario="metered",
        first=94,
        removes="when the provider refuses, everybody stays away for as long as it says",
        code=((throttling, "apply_throttle", shrug_at_refusals),),
    ),
    "breaker_stays_closed": Sabotage(
        scenario="metered",
        first=11,
        removes="after failures in a row a circuit breaker opens for everybody",
        code=((throttling, "apply_call", lambda before, *report: before),),
    ),
    "probes_of_everybody": Sabotage(
        scenario="metered",
        first=11,
        removes="of a half-open circuit breaker one call is the probe",
        code=((buckets, "begin_probe", lambda before, *call: before),),
    ),
    "late_failures_count": Sabotage(
        scenario="metered",
        first=35,
        removes="a call that was granted before a circuit breaker changed says nothing afterwards",
        code=((throttling, "apply_call", apply_late_call),),
    ),
    "expiry_voids": Sabotage(
        scenario="metered",
        first=118,
        removes="a hold whose call may have been made is charged when its time is over",
        code=((memory_ledger, "expire_hold", void_when_late),),
    ),
    "hold_undispatched": Sabotage(
        scenario="metered",
        first=118,
        removes="the ledger knows of a call before it leaves",
        code=((MemoryLedger, "_hold", hold_without_dispatch),),
    ),
    "holds_unseen": Sabotage(
        scenario="metered",
        first=20,
        removes="what others hold counts as used: to look and to hold are one step",
        code=((holds, "fits", fits_what_is_spent), (memory_ledger, "is_balanced", lambda book: True)),
    ),
    "hold_of_another": Sabotage(
        scenario="metered",
        first=8,
        removes="a hold under which another delivery has called is not used again",
        code=((HoldIds, "take", take_id_of_attempt), (rebooking, "repeat_hold", hold_whoever_asks)),
    ),
    "permit_wasted": Sabotage(
        scenario="metered",
        first=2_328,
        removes="the hold comes first if a permit would expire before it is placed",
        code=((ProviderCalls, "_outlasts_permits", lambda calls, needs: False),),
    ),
    "job_hold_forgets": Sabotage(
        scenario="metered",
        first=327,
        removes="a call of unknown cost charges the hold of its whole job in full",
        code=((JobHold, "costs", lambda hold: dict(hold._spent)),),
    ),
    "limiter_waited_for": Sabotage(
        scenario="metered",
        first=110,
        removes="a handler that waits for an absent limiter gives its slot back after a while",
        code=((PermitQueue, "_wait_for_limiter", wait_for_limiter),),
    ),
    "ledger_waited_for": Sabotage(
        scenario="metered",
        first=464,
        removes="a handler that waits for an absent ledger gives its slot back after a while",
        code=((ProviderCalls, "_wait_for_ledger", wait_for_ledger),),
    ),
    "settlement_forgotten": Sabotage(
        scenario="metered",
        first=11,
        removes="a cost that cannot be booked is booked later",
        code=((UnsettledHolds, "add", lambda holds, *settlement: None),),
    ),
    "corrected_twice": Sabotage(
        scenario="metered",
        first=118,
        removes="a captured hold is corrected once",
        code=((memory_ledger, "correct_hold", correct_again),),
    ),
    "unsaid_is_free": Sabotage(
        scenario="metered",
        first=17,
        removes="a call of which nobody says what it has cost is charged in full",
        code=((holds, "line_costs", costs_if_said),),
    ),
    "seats_unkept": Sabotage(
        scenario="metered",
        first=34,
        removes="whoever still sits says so, also to a limiter that has lost its memory",
        code=((LimiterClient, "report_calls", keep_nothing),),
    ),
    "seats_left_early": Sabotage(
        scenario="metered",
        first=2,
        removes="a job keeps its tenant's seat until it ends",
        code=((Admission, "assign", seated_and_up_again),),
    ),
    "caps_unasked": Sabotage(
        scenario="metered",
        removes="jobs of a tenant with caps start only when the limiter admits them",
        code=((Admission, "_requests", asks_without_the_tenant),),
    ),
    "waits_in_its_lane": Sabotage(
        scenario="metered",
        first=4,
        removes="a job that has called since its last checkpoint waits in place",
        code=((ProviderCalls, "wait_in_place", leave_the_place),),
    ),
    "waiting_counts": Sabotage(
        scenario="metered",
        first=4,
        removes="a job that waits for a limit or a budget loses no attempt",
        code=((settle, "decide", decide_counting_waits),),
    ),
}
