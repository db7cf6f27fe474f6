"""Counts again, from the rows of the store and from the provider's journal, and trusts no counter of leaseway's.

An order is *lost* if its job is not done or the provider never charged it, *doubled* if the provider charged it more
than once. The journal names orders and not only keys: a job whose key changed between two attempts is caught too.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

DONE = 3
NAMED_MAX = 5


class Row(NamedTuple):
    """A job as the store has it."""

    order: int
    is_done: bool
    attempts: int


class Verdict(NamedTuple):
    submitted: int
    done: int
    lost: tuple[int, ...]
    doubled: tuple[int, ...]
    requests: int
    requests_repeated: int
    attempts_repeated: int
    leases_taken_back: int

    @property
    def is_clean(self) -> bool:
        return not self.lost and not self.doubled


def judge(submitted: int, rows: Sequence[Row], journal: Iterable[str], leases_taken_back: int) -> Verdict:
    """Orders are numbered from 0; every one of them must be done once and charged once."""
    requests = [line.split()[:2] for line in journal]
    charges = Counter(int(order) for order, what in requests if what == "charged")
    done = Counter(row.order for row in rows if row.is_done)
    return Verdict(
        submitted=submitted,
        done=done.total(),
        lost=tuple(order for order in range(submitted) if not done[order] or not charges[order]),
        doubled=tuple(sorted(order for order in charges | done if charges[order] > 1 or done[order] > 1)),
        requests=len(requests),
        requests_repeated=sum(what == "repeated" for _, what in requests),
        attempts_repeated=sum(max(row.attempts - 1, 0) for row in rows),
        leases_taken_back=leases_taken_back,
    )


def judge_files(submitted: int, store: Path, journal: Path) -> Verdict:
    with sqlite3.connect(store) as connection, journal.open() as lines:
        found = connection.execute("SELECT payload ->> 'order', stage, attempts FROM jobs").fetchall()
        (taken_back,) = connection.execute("SELECT count(*) FROM errors WHERE code = 'lease_expired'").fetchone()
        rows = [Row(order, stage == DONE, attempts) for order, stage, attempts in found]
        verdict = judge(submitted, rows, lines, taken_back)
    connection.close()
    return verdict


def named(orders: Sequence[int]) -> str:
    """The first few, for people who want to look them up."""
    shown = ", ".join(map(str, orders[:NAMED_MAX]))
    return f"{shown} …" if len(orders) > NAMED_MAX else shown
