"""Submit and exchange jobs, renew leases and store checkpoints in one SQLite file. Each method is one transaction.

    submit ─► jobs ─► exchange: settle ─► reclaim expired leases ─► promote scheduled jobs ─► claim

The functions below the classes are the steps, in this order; `reclaim` has the second and the third. Each works on the
open transaction.
"""

from collections.abc import Mapping, Sequence, Set
from itertools import chain, groupby

from leaseway.domain.errors import IdConflict, KeyConflict, foreign_id_text
from leaseway.domain.exchange import (
    BACKLOG_MAX,
    LANES_MAX,
    REOPEN_MAX,
    Exchange,
    ExchangeReply,
    Gate,
    HeldLease,
    ProgressReport,
    Renewed,
    Wants,
)
from leaseway.domain.ids import Instant, JobId, Token, WorkerId
from leaseway.domain.job import Lease, NewJob, Settlement, State, Submitted, jobs_by_id
from leaseway.domain.lane import LaneTurn, admits_by_gate, advance, divide_claim
from leaseway.stores.sqlite.database import (
    BYTES,
    DONE,
    LEASE_BOUNDS,
    LEASED,
    PAYLOAD,
    READY,
    SCHEDULED,
    Database,
    LaneNames,
    Row,
    Transaction,
    as_json,
    parse_lease,
    parse_turn,
)
from leaseway.stores.sqlite.gates import close_lanes, list_gates
from leaseway.stores.sqlite.reclaim import add_errors, counting_bytes, promote, reclaim


class SqliteJobs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        answers = await self._database.write(lambda transaction: submit(transaction, jobs))
        self._database.notifier.notify()
        return answers

    async def exchange(self, call: Exchange) -> ExchangeReply:
        answer = await self._database.write(lambda transaction: exchange(transaction, call))
        if any(settlement.state is State.PENDING or settlement.children for settlement in call.settlements):
            self._database.notifier.notify()
        return answer

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        sent = as_json([(held.id, held.token, held.lease_us) for held in leases])
        answers = await self._database.write(
            lambda transaction: transaction.run("renew", leases=sent, now=transaction.now)
        )
        renewed = {(id_, token): is_to_cancel for id_, token, is_to_cancel in answers}
        lost = tuple(held.id for held in leases if (held.id, held.token) not in renewed)
        return Renewed(lost, tuple(held.id for held in leases if renewed.get((held.id, held.token))))

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        def work(transaction: Transaction) -> list[Row]:
            with counting_bytes(transaction, [job]):
                return transaction.run("checkpoint", id=job, token=token, cursor=cursor, now=transaction.now)

        return bool(await self._database.write(work))

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        def work(transaction: Transaction) -> None:
            with counting_bytes(transaction, list({report.id for report in reports})):
                for report in reports:
                    transaction.run("report", id=report.id, token=report.token, progress=report.progress)

        await self._database.write(work)

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        gates = as_json([(gate.needs, gate.tenant) for gate in closed])
        ((is_ready, *times),) = await self._database.read("wait", queues=as_json(queues), closed=gates)
        if is_ready:
            return 0
        due = [at for at in times if at is not None]
        return max(0, min(due) - self._database.now_us()) if due else None

    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        held = as_json([(each.id, each.token) for each in leases])
        return dict(await self._database.read("trace_list", leases=held))


class SqliteBlockingSubmission:
    def __init__(self, database: Database) -> None:
        self._database = database

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        answers = self._database.write_blocking(lambda transaction: submit(transaction, jobs))
        self._database.notifier.notify()
        return answers


# -- submit -----------------------------------------------------------------------------------------------------------


def submit(transaction: Transaction, jobs: Sequence[NewJob], *, ignore_conflicts: bool = False) -> list[Submitted]:
    """Store the jobs that are new. Keys are looked up first.

    With `ignore_conflicts`, a key that was used with other arguments is not an error: the caller is a worker or a
    schedule, which cannot choose another key.
    """
    if all(job.key is None for job in jobs):
        insert(transaction, jobs)
        return [Submitted(job.id) for job in jobs]
    distinct = jobs_by_id(jobs)
    first = {id_: job.key and known_job(transaction, job, ignore_conflicts) for id_, job in distinct.items()}
    insert(transaction, [job for id_, job in distinct.items() if not first[id_]])
    return [Submitted(answer := first[job.id] or job.id, answer != job.id) for job in jobs]


def known_job(transaction: Transaction, job: NewJob, ignore_conflicts: bool) -> JobId | None:
    """The stored job that stands for this one: the same id, or the first job with its key. None: it is new."""
    if transaction.run("job_state", id=job.id):
        refuse_foreign_ids(transaction, [job])
        return job.id
    known = transaction.run("key_find", tenant=job.tenant, key=job.key, now=transaction.now)
    if not known:
        names = {"tenant": job.tenant, "key": job.key, "job": job.id, "fingerprint": job.fingerprint}
        transaction.run("key_add", **names, expires_at=transaction.now + job.key_keep_us)
        return None
    ((first, fingerprint),) = known
    if fingerprint != job.fingerprint and not ignore_conflicts:
        raise KeyConflict(
            f"key {job.key!r} of tenant {job.tenant!r} names job {first}, which was submitted with another kind or "
            "other arguments; use a new key for a new job"
        )
    return JobId(first)


def insert(transaction: Transaction, jobs: Sequence[NewJob]) -> None:
    for _, group in groupby(jobs, shared_fields):  # only neighbours, so that the order of submission stays
        insert_uniform(transaction, list(group))


def shared_fields(job: NewJob) -> Row:
    """All fields of a new job except id and payload. Jobs with equal fields are stored by one statement."""
    # fmt: off
    return (job.queue, job.tenant, job.needs, job.kind, job.priority, job.attempts_max, job.lease_us, job.timeout_us,
            job.shard_key, job.cursor, job.delay_us, job.run_at, job.trace)
    # fmt: on


def insert_uniform(transaction: Transaction, jobs: Sequence[NewJob]) -> None:
    first = jobs[0]
    lane = find_lane(transaction, first.queue, first.tenant, first.needs)
    state, run_at = pending_state(first.run_at, first.delay_us, transaction.now)
    shared = {
        "lane": lane, "state": state, "kind": first.kind, "priority": first.priority, "run_at": run_at,
        "attempts_max": first.attempts_max, "lease_us": first.lease_us, "timeout_us": first.timeout_us,
        "shard_key": first.shard_key, "cursor": first.cursor, "now": transaction.now, "trace": first.trace,
    }  # fmt: skip
    if len(jobs) == 1:
        stored = transaction.change("submit_one", id=first.id, payload=inline_payload(first), **shared)
    else:
        payloads = as_json({job.id: inline_payload(job) for job in jobs})
        stored = transaction.change("submit", payloads=payloads, **shared)
    large = [(job.payload.encode(), job.id) for job in jobs if inline_payload(job) is None]
    if large:
        transaction.run_each("large_payload_add", large)
    size = sum(utf8_length(job.payload) for job in jobs) + len(jobs) * utf8_length(first.cursor or "")
    if stored < len(jobs):
        refuse_foreign_ids(transaction, jobs)
        ((size,),) = transaction.run("stored_bytes", count=stored) if stored else ((0,),)
    transaction.count(lane, state, stored)
    transaction.count(lane, BYTES, size)


INLINE_MAX = 1_000
"""The most characters of a payload that is stored in the row of its job: a quarter of a page."""


def utf8_length(text: str) -> int:
    """Nearly all texts are ASCII, which Python knows without reading them."""
    return len(text) if text.isascii() else len(text.encode())


def inline_payload(job: NewJob) -> str | None:
    return job.payload if len(job.payload) <= INLINE_MAX else None


def refuse_foreign_ids(transaction: Transaction, jobs: Sequence[NewJob]) -> None:
    """Some of these ids are known. A known id of the same tenant is a repeated submission."""
    foreign = transaction.run("foreign_ids", jobs=as_json([(job.id, job.tenant) for job in jobs]))
    if foreign:
        raise IdConflict(foreign_id_text(foreign[0][0]))


def pending_state(run_at: Instant | None, delay_us: int, now: Instant) -> tuple[str, Instant]:
    """State and time to run of a pending job."""
    at = now + delay_us if run_at is None else run_at
    return (SCHEDULED if at > now else READY), at


def find_lane(transaction: Transaction, queue: str, tenant: str, needs: str) -> int:
    found = transaction.run("lane_find", queue=queue, tenant=tenant, needs=needs)
    if not found:
        transaction.run("flow_open", queue=queue, tenant=tenant)
        transaction.run("lane_open", queue=queue, tenant=tenant, needs=needs)
        found = transaction.run("lane_find", queue=queue, tenant=tenant, needs=needs)
    return int(found[0][0])


# -- exchange ---------------------------------------------------------------------------------------------------------


def exchange(transaction: Transaction, call: Exchange) -> ExchangeReply:
    lost = settle(transaction, call.settlements) if call.settlements else []
    ((expired, promotable, to_cancel, has_gates, reopenable),) = transaction.run("due", now=transaction.now)
    if expired:
        reclaim(transaction)
    if promotable:
        promote(transaction)
    if reopenable:
        transaction.run("lanes_reopen", now=transaction.now, limit=REOPEN_MAX, backlog=BACKLOG_MAX)
    if call.wants and call.wants.closed:
        close_lanes(transaction, call.wants)
    leases = lease(transaction, call.worker, call.wants, call.repeat) if call.wants else []
    cancelled = transaction.run("to_cancel", worker=call.worker) if to_cancel else []
    gated = list_gates(transaction, call.wants) if has_gates and call.wants and call.wants.count > 0 else []
    return ExchangeReply(tuple(leases), tuple(lost), tuple(id_ for (id_,) in cancelled), tuple(gated))


def settle(transaction: Transaction, settlements: Sequence[Settlement]) -> list[JobId]:
    """Write the accepted settlements; return the jobs whose settlement is rejected."""
    if len({settlement.id for settlement in settlements}) < len(settlements):
        # A job is settled twice: the first settlement decides about the second.
        return [job for settlement in settlements for job in settle(transaction, [settlement])]
    done = [settlement for settlement in settlements if is_plain_done(settlement)]
    others = [settlement for settlement in settlements if not is_plain_done(settlement)]
    accepted = settle_done(transaction, done) | settle_others(transaction, others)
    children = [child for settlement in settlements if settlement.id in accepted for child in settlement.children]
    if children:
        submit(transaction, children, ignore_conflicts=True)
    return [] if len(accepted) == len(settlements) else rejected(transaction, settlements, accepted)


def is_plain_done(settlement: Settlement) -> bool:
    """Done, with a result and nothing else to write."""
    return settlement.state is State.DONE and settlement.failure is None and settlement.progress is None


def settle_done(transaction: Transaction, settlements: Sequence[Settlement]) -> set[JobId]:
    """Settle with one statement per claim."""
    results: dict[str, dict[str, str | None]] = {}
    for settlement in settlements:
        results.setdefault(settlement.token, {})[settlement.id] = settlement.result
    accepted: set[JobId] = set()
    for token, by_job in results.items():
        sent = as_json(by_job)
        for id_, lane, size in transaction.run_one("settleable", results=sent, token=token):
            accepted.add(id_)
            transaction.moved(lane, LEASED, DONE)
            transaction.count(lane, BYTES, size)
        transaction.change("settle_done", results=sent, token=token, now=transaction.now)
    return accepted


def settle_others(transaction: Transaction, settlements: Sequence[Settlement]) -> set[JobId]:
    if not settlements:
        return set()
    sent = as_json([settlement_row(settlement, transaction.now) for settlement in settlements])
    attempts: dict[JobId, int] = {}
    with counting_bytes(transaction, [settlement.id for settlement in settlements]):
        for id_, lane, state, count in transaction.run("settle", settlements=sent, now=transaction.now):
            attempts[id_] = count
            transaction.moved(lane, LEASED, state)
        failed = [each for each in settlements if each.failure is not None and each.id in attempts]
        add_errors(transaction, [(each.id, attempts[each.id] + each.returns_attempt, each.failure) for each in failed])
    return set(attempts)


def settlement_row(settlement: Settlement, now: Instant) -> Row:
    """In the order of settle.sql."""
    state, run_at = settlement.state.value, None
    if settlement.state is State.PENDING:
        state, run_at = pending_state(settlement.run_at, settlement.delay_us, now)
    code = settlement.failure.code if settlement.failure else None
    # fmt: off
    return (settlement.id, settlement.token, state, run_at, int(settlement.returns_attempt), settlement.result,
            code, settlement.progress)
    # fmt: on


def rejected(transaction: Transaction, settlements: Sequence[Settlement], accepted: Set[JobId]) -> list[JobId]:
    """Jobs whose settlement was accepted neither now nor before."""
    late = [settlement for settlement in settlements if settlement.id not in accepted]
    sent = as_json([(settlement.id, settlement.token) for settlement in late])
    before = {id_ for (id_,) in transaction.run("settled_before", settlements=sent)}
    return [settlement.id for settlement in late if settlement.id not in before]


def lease(transaction: Transaction, worker: WorkerId, wants: Wants, repeat: bool) -> list[Lease]:
    limit = -1 if wants.repeat_max is None else wants.repeat_max  # -1: no limit
    if repeat and (adopted := transaction.run_one("adoptable", token=wants.token, worker=worker, limit=limit)):
        transaction.change("adopt", now=transaction.now, token=wants.token, worker=worker, **LEASE_BOUNDS)
        lanes = transaction.run("lane_names", lanes=as_json([row[-1] for row in adopted]))
        names = {lane: (queue, tenant, needs) for lane, queue, tenant, needs in lanes}
        return parse_leases(transaction, adopted, wants.token, names)
    return claim(transaction, worker, wants) if wants.count > 0 else []


def claim(transaction: Transaction, worker: WorkerId, wants: Wants) -> list[Lease]:
    transaction.close()  # the counters must include the jobs that this transaction has made ready
    admits = admits_by_gate(wants.admits)
    queues, gates = as_json(wants.queues), as_json([(gate.needs, gate.tenant) for gate in admits])
    floor = flow_floor(transaction, queues)
    lanes = transaction.run(
        "lanes_with_work", queues=queues, tenant=wants.tenant, admits=gates, floor=floor, lanes_max=LANES_MAX
    )
    turns = [parse_turn(row) for row in lanes]
    shares = divide_claim(wants.count, turns, admits)
    names = {lane: (queue, tenant, needs) for lane, queue, tenant, needs, *_ in lanes}
    claimed = list(chain.from_iterable(first_jobs(transaction, shares).values()))
    jobs = as_json([row[0] for row in claimed])
    transaction.change("claim", jobs=jobs, token=wants.token, worker=worker, now=transaction.now, **LEASE_BOUNDS)
    for row in claimed:
        transaction.moved(row[-1], READY, LEASED)
    store_times(transaction, turns, shares)
    return parse_leases(transaction, claimed, wants.token, names)


def first_jobs(transaction: Transaction, shares: Mapping[int, int]) -> dict[int, list[Row]]:
    """The jobs to claim from each lane, in the columns of claimable.sql. Lanes with equal shares are read together."""
    lanes: dict[int, list[int]] = {}
    for lane, count in shares.items():
        lanes.setdefault(count, []).append(lane)
    found: dict[int, list[Row]] = {lane: [] for lane in shares}
    for count, group in lanes.items():
        for row in transaction.run_one("claimable", lanes=as_json(group), count=count):
            found[row[-1]].append(row)
    return found


def parse_leases(transaction: Transaction, rows: Sequence[Row], token: Token, names: LaneNames) -> list[Lease]:
    apart = [row[0] for row in rows if row[PAYLOAD] is None]
    large: dict[int, str] = dict(transaction.run("large_payload_find", jobs=as_json(apart))) if apart else {}
    return [parse_lease(row, token, names, large.get(row[0], "")) for row in rows]


def store_times(transaction: Transaction, turns: Sequence[LaneTurn], shares: Mapping[int, int]) -> None:
    flows, vtimes = advance(turns, shares)
    served = [(transaction.now, each.vtime, each.vfloor, each.lane_floor, *flow) for flow, each in flows.items()]
    transaction.run_each("flow_served", served)
    if vtimes:
        transaction.run_each("lane_served", [(vtime, lane) for lane, vtime in vtimes.items()])


def flow_floor(transaction: Transaction, queues: str) -> int:
    ((floor,),) = transaction.run("flow_floor", queues=queues)
    return int(floor)
