"""The steps of a write transaction, in the order in which an exchange takes them.

Every step works on the open transaction, with the instant at which it began, and tells the tally which lanes it
changed. Closing the transaction adds the tally to the counters: one statement per lane, whatever happened.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import groupby

from leaseway.domain.errors import KeyConflict
from leaseway.domain.exchange import (
    ERRORS_MAX,
    LANES_MAX,
    PROMOTE_MAX,
    RECLAIM_MAX,
    Exchange,
    ExchangeReply,
    Gate,
    Gated,
    Wants,
)
from leaseway.domain.ids import Instant, JobId, WorkerId
from leaseway.domain.job import Lease, NewJob, Settlement, Submitted
from leaseway.domain.lane import admits_by_gate, divide_claim
from leaseway.stores.sqlite import rows
from leaseway.stores.sqlite.rows import CANCELLED, DONE, FAILED, LEASED, READY, SCHEDULED, Row, as_json


class Transaction:
    def __init__(self, connection: sqlite3.Connection, now: Instant, sql: Mapping[str, str]) -> None:
        self.connection = connection
        self.now = now
        self._sql = sql
        self._tally: dict[int, list[int]] = {}

    # -- speaking SQL -----------------------------------------------------------------------------------------------

    def run(self, verb: str, **values: object) -> list[Row]:
        """One statement by its name, and all that it answers."""
        return self.connection.execute(self._sql[verb], values).fetchall()

    def run_one(self, verb: str, **values: object) -> list[Row]:
        """One statement that packs all it answers into one row of JSON.

        sqlite3 lets other threads run before each row, and must wait for them after it: a thousand rows at once while
        handlers are busy are a thousand waits.
        """
        ((text,),) = self.run(verb, **values)
        return rows.unpacked(text)

    def change(self, verb: str, **values: object) -> int:
        """One statement by its name; how many rows it changed."""
        return self.connection.execute(self._sql[verb], values).rowcount

    def run_each(self, verb: str, each: Iterable[Row]) -> int:
        """One statement for many rows; how many it changed."""
        return self.connection.executemany(self._sql[verb], each).rowcount

    def count(self, lane: int, stage: int, change: int) -> None:
        self._tally.setdefault(lane, [0] * 6)[stage] += change

    def moved(self, lane: int, before: int, after: int) -> None:
        self.count(lane, before, -1)
        self.count(lane, after, +1)

    def close(self) -> None:
        """Add what was tallied to the counters."""
        if self._tally:
            self.run_each("lane_count", [(*changes, lane) for lane, changes in self._tally.items()])
            self._tally.clear()

    # -- submit -----------------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob], *, conflicts_replay: bool = False) -> list[Submitted]:
        """Keys first: they say which jobs are new. `conflicts_replay`: nobody is there to be told of a conflict."""
        if all(job.key is None for job in jobs):
            self._insert(jobs)
            return [Submitted(job.id) for job in jobs]
        distinct = {job.id: job for job in jobs}
        first = {id_: job.key and self._known(job, conflicts_replay) for id_, job in distinct.items()}
        self._insert([job for id_, job in distinct.items() if not first[id_]])
        return [Submitted(answer := first[job.id] or job.id, answer != job.id) for job in jobs]

    def _known(self, job: NewJob, conflicts_replay: bool) -> JobId | None:
        """The job that stands for this one: itself, sent again, or the first one of its key. None: it is new."""
        if self.run("stage", id=job.id):
            return job.id
        known = self.run("key_find", tenant=job.tenant, key=job.key, now=self.now)
        if not known:
            self._keep_key(job)
            return None
        ((first, fingerprint),) = known
        if fingerprint != job.fingerprint and not conflicts_replay:
            raise KeyConflict(
                f"key {job.key!r} of tenant {job.tenant!r} names job {first}, which was submitted with another kind or "
                "other arguments; use a new key for a new job"
            )
        return JobId(first)

    def _keep_key(self, job: NewJob) -> None:
        expires_at = self.now + job.key_keep_us
        names = {"tenant": job.tenant, "key": job.key, "job": job.id}
        self.run("key_keep", **names, fingerprint=job.fingerprint, expires_at=expires_at)

    def _insert(self, jobs: Sequence[NewJob]) -> None:
        for like, group in groupby(jobs, rows.alike):  # neighbours only: the order of submission stays
            self._insert_alike(like, {job.id: job.payload for job in group})

    def _insert_alike(self, like: rows.Alike, payloads: dict[JobId, str]) -> None:
        (
            queue,
            tenant,
            needs,
            kind,
            priority,
            attempts_max,
            lease_us,
            timeout_us,
            shard_key,
            cursor,
            delay_us,
            run_at,
            trace,
        ) = like
        lane = self._lane(queue, tenant, needs)
        stage, run_at = rows.pending(run_at, delay_us, self.now)
        shared = {
            **{"lane": lane, "stage": stage, "kind": kind, "priority": priority, "run_at": run_at},
            **{"attempts_max": attempts_max, "lease_us": lease_us, "timeout_us": timeout_us},
            **{"shard_key": shard_key, "cursor": cursor, "now": self.now, "trace": trace},
        }
        if len(payloads) == 1:
            ((id_, payload),) = payloads.items()
            stored = self.change("submit_one", id=id_, payload=payload, **shared)
        else:
            stored = self.change("submit", payloads=as_json(payloads), **shared)
        self.count(lane, stage, stored)

    def _lane(self, queue: str, tenant: str, needs: str) -> int:
        found = self.run("lane_find", queue=queue, tenant=tenant, needs=needs)
        if not found:
            self.run("lane_open", queue=queue, tenant=tenant, needs=needs)
            found = self.run("lane_find", queue=queue, tenant=tenant, needs=needs)
        return int(found[0][0])

    # -- exchange ---------------------------------------------------------------------------------------------------

    def exchange(self, call: Exchange) -> ExchangeReply:
        lost = self._settle(call.settlements) if call.settlements else []
        ((expired, promotable, to_cancel, has_gates),) = self.run("due", now=self.now)
        if expired:
            self._reclaim()
        if promotable:
            self._promote()
        leases = self._lease(call.worker, call.wants, call.repeat) if call.wants else []
        cancelled = self.run("to_cancel", worker=call.worker) if to_cancel else []
        gated = self._gated(call.wants) if has_gates and call.wants and call.wants.count > 0 else []
        return ExchangeReply(tuple(leases), tuple(lost), tuple(id_ for (id_,) in cancelled), tuple(gated))

    def _settle(self, settlements: Sequence[Settlement]) -> list[JobId]:
        """Write what is accepted; answer who came too late."""
        if len({settlement.id for settlement in settlements}) < len(settlements):
            # The same job twice: the first settlement decides what becomes of the second.
            return [job for settlement in settlements for job in self._settle([settlement])]
        done = [settlement for settlement in settlements if rows.is_plainly_done(settlement)]
        others = [settlement for settlement in settlements if not rows.is_plainly_done(settlement)]
        accepted = self._settle_done(done) | self._settle_others(others)
        children = [child for settlement in settlements if settlement.id in accepted for child in settlement.children]
        if children:
            self.submit(children, conflicts_replay=True)
        return [] if len(accepted) == len(settlements) else self._refused(settlements, accepted)

    def _settle_done(self, settlements: Sequence[Settlement]) -> set[JobId]:
        """One statement for each claim that they came from."""
        results: dict[str, dict[str, str | None]] = {}
        for settlement in settlements:
            results.setdefault(settlement.token, {})[settlement.id] = settlement.result
        accepted: set[JobId] = set()
        for token, result_of in results.items():
            sent = as_json(result_of)
            for id_, lane in self.run_one("settleable", results=sent, token=token):
                accepted.add(id_)
                self.moved(lane, LEASED, DONE)
            self.change("settle_done", results=sent, token=token, now=self.now)
        return accepted

    def _settle_others(self, settlements: Sequence[Settlement]) -> set[JobId]:
        if not settlements:
            return set()
        sent = as_json([rows.settlement_row(settlement, self.now) for settlement in settlements])
        attempts: dict[JobId, int] = {}
        for id_, lane, stage, count in self.run("settle", settlements=sent, now=self.now):
            attempts[id_] = count
            self.moved(lane, LEASED, stage)
        for settlement in settlements:
            if settlement.failure is not None and settlement.id in attempts:
                self._keep_error(settlement, attempts[settlement.id])
        return set(attempts)

    def _refused(self, settlements: Sequence[Settlement], accepted: Set[JobId]) -> list[JobId]:
        late = [settlement for settlement in settlements if settlement.id not in accepted]
        sent = as_json([(settlement.id, settlement.token) for settlement in late])
        before = {id_ for (id_,) in self.run("settled_before", settlements=sent)}
        return [settlement.id for settlement in late if settlement.id not in before]

    def _keep_error(self, settlement: Settlement, attempts: int) -> None:
        failure = settlement.failure
        assert failure is not None
        attempt = attempts + settlement.gives_back
        self._keep_errors([(settlement.id, attempt, self.now, failure.code, failure.message, failure.traceback)])

    def _keep_errors(self, errors: Sequence[Row]) -> None:
        self.run_each("error_keep", errors)
        self.run_each("error_forget", [(job, ERRORS_MAX) for job, *_ in errors])

    def _reclaim(self) -> None:
        """Take back expired leases. The next stage is chosen here, since only the store knows who is late."""
        expired = self.run("expired", now=self.now, limit=RECLAIM_MAX)
        late = [(seq, _after_expiry(*rest)) for seq, _, _, _, *rest in expired]
        codes = {READY: LEASE_EXPIRED, FAILED: LEASE_EXPIRED, CANCELLED: None}
        for seq, stage in late:
            self.run("reclaim", seq=seq, stage=stage, now=self.now, code=codes[stage])
        for (_, _, lane, *_), (_, stage) in zip(expired, late, strict=True):
            self.moved(lane, LEASED, stage)
        self._keep_errors(
            [
                (id_, attempts, self.now, LEASE_EXPIRED, f"worker {owner} stopped renewing its lease", "")
                for (_, id_, _, owner, attempts, *_), (_, stage) in zip(expired, late, strict=True)
                if stage != CANCELLED
            ]
        )

    def _promote(self) -> None:
        for (lane,) in self.run("promote", now=self.now, limit=PROMOTE_MAX):
            self.moved(lane, SCHEDULED, READY)

    def _lease(self, worker: WorkerId, wants: Wants, repeat: bool) -> list[Lease]:
        if repeat and (adopted := self.run_one("adoptable", token=wants.token, worker=worker)):
            self.change("adopt", now=self.now, token=wants.token, worker=worker)
            return self._leases(adopted, wants)
        if wants.count <= 0:
            return []
        return self._claim(worker, wants)

    def _claim(self, worker: WorkerId, wants: Wants) -> list[Lease]:
        # Closing the books first: the counters must know what this transaction has made ready.
        self.close()
        admits = admits_by_gate(wants.admits)
        queues, gates = as_json(wants.queues), as_json([(gate.needs, gate.tenant) for gate in admits])
        floor = self._floor(queues)
        lanes = self.run(
            "lanes_with_work", queues=queues, tenant=wants.tenant, admits=gates, floor=floor, lanes_max=LANES_MAX
        )
        turns = {lane: rows.turn_of((lane, *rest)) for lane, *rest in lanes}
        shares = divide_claim(wants.count, turns.values(), admits)
        names = {lane: (queue, tenant, needs) for lane, queue, tenant, needs, *_ in lanes}
        leases: list[Lease] = []
        for lane, count in shares.items():
            claimed = self.run_one("claimable", lane=lane, count=count)
            jobs = as_json([row[0] for row in claimed])
            self.change("claim", jobs=jobs, token=wants.token, worker=worker, now=self.now)
            self.count(lane, READY, -len(claimed))
            self.count(lane, LEASED, len(claimed))
            leases += [rows.lease_of(row, wants.token, names) for row in claimed]
        first = next(iter(turns.values())).place if turns else 0
        moved = [(self.now, turns[lane].moved(count), first, lane) for lane, count in shares.items()]
        self.run_each("lane_served", moved)
        return leases

    def _floor(self, queues: str) -> int:
        ((floor,),) = self.run("lane_floor", queues=queues)
        return int(floor)

    def _gated(self, wants: Wants) -> list[Gated]:
        """Behind which gates jobs are still ready."""
        self.close()  # the counters must know what was claimed
        queues = as_json(wants.queues)
        closed = as_json([(gate.needs, gate.tenant) for gate in wants.closed])
        floor = self._floor(queues)
        found = self.run(
            "lanes_gated", queues=queues, tenant=wants.tenant, closed=closed, floor=floor, gates_max=LANES_MAX
        )
        return [Gated(Gate(needs, tenant), ready) for needs, tenant, ready in found]

    def _leases(self, adopted: list[Row], wants: Wants) -> list[Lease]:
        lanes = self.run("lane_names", lanes=as_json([row[-1] for row in adopted]))
        names = {lane: (queue, tenant, needs) for lane, queue, tenant, needs in lanes}
        return [rows.lease_of(row, wants.token, names) for row in adopted]


LEASE_EXPIRED = "lease_expired"


def _after_expiry(attempts: int, attempts_max: int, cancel_requested: int) -> int:
    if cancel_requested:
        return CANCELLED
    return READY if attempts < attempts_max else FAILED
