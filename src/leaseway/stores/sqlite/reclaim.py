"""Expired leases and scheduled jobs whose time has come. Exchanges handle a bounded number of them at a time, and lanes
take turns.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from leaseway.domain.exchange import BACKLOG_MAX, ERRORS_MAX, PROMOTE_MAX, RECLAIM_MAX
from leaseway.domain.ids import JobId
from leaseway.domain.job import Failure, State
from leaseway.domain.outcome import expired_lease, state_after_expiry
from leaseway.stores.sqlite.database import (
    BYTES,
    CANCELLED,
    FAILED,
    LEASED,
    READY,
    SCHEDULED,
    Transaction,
    as_json,
)


def add_errors(transaction: Transaction, errors: Sequence[tuple[JobId, int, Failure | None]]) -> None:
    rows = [
        (job, attempt, transaction.now, failure.code, failure.message, failure.traceback)
        for job, attempt, failure in errors
        if failure is not None
    ]
    if rows:
        transaction.run_each("error_add", rows)
        transaction.run_each("error_trim", [(job, ERRORS_MAX) for job, *_ in rows])


def reclaim(transaction: Transaction) -> None:
    """End expired leases: the jobs become ready, failed or cancelled."""
    expired = transaction.run("expired", now=transaction.now, limit=RECLAIM_MAX, backlog=BACKLOG_MAX)
    errors: list[tuple[JobId, int, Failure | None]] = []
    with counting_bytes(transaction, [id_ for _, id_, *_ in expired]):
        for seq, id_, lane, owner, attempts, *rest in expired:
            state = AFTER_EXPIRY[state_after_expiry(attempts, *rest)]
            failure = None if state == CANCELLED else expired_lease(owner)
            transaction.run("reclaim", seq=seq, state=state, now=transaction.now, code=failure and failure.code)
            transaction.moved(lane, LEASED, state)
            errors.append((id_, attempts, failure))
        add_errors(transaction, errors)


AFTER_EXPIRY = {State.PENDING: READY, State.FAILED: FAILED, State.CANCELLED: CANCELLED}


def promote(transaction: Transaction) -> None:
    earliest = transaction.run("promote", now=transaction.now, limit=PROMOTE_MAX)
    for (lane,) in earliest:
        transaction.moved(lane, SCHEDULED, READY)
    if len(earliest) == PROMOTE_MAX:
        promote_by_lane(transaction)


def promote_by_lane(transaction: Transaction) -> None:
    """More jobs are due than one exchange promotes, and all of the earliest may be in one lane."""
    visited = transaction.run("promotion_visit", now=transaction.now, limit=PROMOTE_MAX)
    due = [lane for lane, is_due in visited if is_due]
    for lane in due:
        count = transaction.change("promote_lane", lane=lane, now=transaction.now, limit=PROMOTE_MAX // len(due))
        transaction.count(lane, SCHEDULED, -count)
        transaction.count(lane, READY, count)
    transaction.run("promotion_end", upto=visited[-1][0] if len(visited) == PROMOTE_MAX else 0)


@contextmanager
def counting_bytes(transaction: Transaction, ids: Sequence[JobId]) -> Iterator[None]:
    """Count by how much the texts of these jobs grow or shrink in the block, besides their payloads."""
    sent = as_json(ids)
    before = transaction.run("kept_sizes", ids=sent)
    yield
    for lane, size in transaction.run("kept_sizes", ids=sent):
        transaction.count(lane, BYTES, size)
    for lane, size in before:
        transaction.count(lane, BYTES, -size)
