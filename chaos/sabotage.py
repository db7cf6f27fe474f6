"""Safeguards that can be removed, to show that the checker notices: `./dev chaos --sabotage NAME`.

The product has no code for this: the worker and submitter programs of the campaign replace a function of the product
when the environment says so, or a statement of the SQLite store, or a step of the MongoDB store, and the supervisor
replaces a function of PostgreSQL's schema. A run with a sabotage must end with a violation.
"""

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg
from msgspec import Struct
from msgspec.structs import replace

import leaseway.app
import leaseway.stores.sqlite.store
from leaseway.domain.errors import TransientError, UnknownOutcome
from leaseway.domain.job import NewJob, Submitted
from leaseway.ports.clock import Clock
from leaseway.ports.job_store import JobStore
from leaseway.stores.mongodb import jobs as mongodb_jobs
from leaseway.stores.mongodb import settle as mongodb_settle
from leaseway.stores.mongodb.database import JobTransaction
from leaseway.stores.sqlite.database import statements
from leaseway.system import SystemIds
from leaseway.worker import submit as submitting
from leaseway.worker.lease_renewal import LeaseRenewal
from leaseway.worker.settle import Attempt, Stop
from leaseway.worker.slots import Slots

SABOTAGE = "CHAOS_SABOTAGE"

IDS = SystemIds()
real_halt = Slots.halt
real_is_due, real_reclaim = mongodb_jobs.is_due, mongodb_settle.reclaim
EARLY_US = 2_000_000


class Sabotage(Struct, frozen=True, kw_only=True):
    removes: str
    """The safeguard that is removed, in one sentence."""
    code: tuple[tuple[Any, str, Callable[..., Any]], ...] = ()
    """(owner, name, replacement)"""
    sql: tuple[tuple[str, str, str], ...] = ()
    """(function of PostgreSQL's schema, text in it, replacement)"""
    file_sql: tuple[tuple[str, str, str], ...] = ()
    """(statement of the SQLite store, text in it, replacement)"""
    mongodb: tuple[tuple[Any, str, Callable[..., Any]], ...] = ()
    """(module of the MongoDB store, name, replacement)"""

    def statements(self) -> Mapping[str, str]:
        """The statements of the SQLite store without the safeguard."""
        altered = dict(statements())
        for verb, text, instead in self.file_sql:
            if text not in altered[verb]:
                raise LookupError(f"{verb}.sql does not say {text!r} any more: this sabotage removes nothing")
            altered[verb] = altered[verb].replace(text, instead)
        return altered


async def submit_anew(
    store: JobStore, jobs: Sequence[NewJob], clock: Clock, unknown: UnknownOutcome | None = None
) -> list[Submitted]:
    for _ in range(submitting.TRIES_MAX):
        try:
            return await store.submit(jobs)
        except UnknownOutcome:
            jobs = [replace(job, id=IDS.job()) for job in jobs]
            await asyncio.sleep(0.1)
    return await store.submit(jobs)


async def submit_hopefully(
    store: JobStore, jobs: Sequence[NewJob], clock: Clock, unknown: UnknownOutcome | None = None
) -> list[Submitted]:
    try:
        return await store.submit(jobs)
    except TransientError:
        return [Submitted(job.id) for job in jobs]


async def look_away(keeper: LeaseRenewal) -> None: ...


def halt_unless_lost(slots: Slots, running: Attempt, why: Stop) -> None:
    if why is not Stop.LOST:
        real_halt(slots, running, why)


class AnyToken(str):
    """Equal to every token."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def held_by_anybody(doc: Mapping[str, Any]) -> str | None:
    return AnyToken() if doc["status"] == "leased" else None


def is_held_by_anybody(doc: Mapping[str, Any] | None, token: str, now: int) -> bool:
    return doc is not None


def is_due_early(found: Mapping[str, Any], now: int) -> bool:
    return real_is_due(found, now + EARLY_US)


async def reclaim_early(transaction: JobTransaction, settled: mongodb_settle.Held) -> None:
    early = copy.copy(transaction)
    early.now = transaction.now + EARLY_US
    await real_reclaim(early, settled)


ANY = "IS NOT NULL"
UNTOLD = ((Slots, "halt", halt_unless_lost),)
"""Without this the worker's own caution would hide that the store's safeguard is gone."""

SABOTAGES: dict[str, Sabotage] = {
    "submit_anew": Sabotage(
        removes="a submission whose reply was lost is repeated with the same ids",
        code=((leaseway.app, "submit", submit_anew), (submitting, "submit", submit_anew)),
    ),
    "submit_hopefully": Sabotage(
        removes="a submission counts as accepted only when the store says so",
        code=((leaseway.app, "submit", submit_hopefully), (submitting, "submit", submit_hopefully)),
    ),
    "unrenewed": Sabotage(
        removes="leases of running jobs are renewed",
        code=((LeaseRenewal, "check", look_away),),
    ),
    "loss_untold": Sabotage(
        removes="a worker stops a handler whose lease is lost",
        code=UNTOLD,
    ),
    "settle_any_token": Sabotage(
        removes="settling compares the token, and a worker does not settle what it lost",
        code=UNTOLD,
        sql=(
            ("settle_done", "jobs.token = sent.token", f"jobs.token {ANY}"),
            ("settle_done_after_errors", "jobs.token = sent.token", f"jobs.token {ANY}"),
            ("settle_others", "jobs.token = sent.token", f"jobs.token {ANY}"),
            ("settle_others", "jobs.token = starts.token", f"jobs.token {ANY}"),
        ),
        file_sql=(
            ("settle", "jobs.token = settled.token", f"jobs.token {ANY}"),
            ("settleable", "job_sizes.token = :token", f"job_sizes.token {ANY}"),
            ("settle_done", "jobs.token = :token", f"jobs.token {ANY} AND :token {ANY}"),
        ),
        mongodb=((mongodb_settle, "held_token", held_by_anybody),),
    ),
    "checkpoint_any_token": Sabotage(
        removes="a checkpoint compares the token, and a handler is told that its lease is lost",
        code=UNTOLD,
        sql=(("checkpoint", "token = held_token AND until > coalesce(at, now_us())", f"token {ANY}"),),
        file_sql=(("checkpoint", "token = :token AND until > :now", f"token {ANY}"),),
        mongodb=((mongodb_jobs, "is_held", is_held_by_anybody),),
    ),
    "reclaim_early": Sabotage(
        removes="only expired leases are taken back",
        sql=(
            ("any_expired", "until <= late_at", "until <= late_at + 2000000"),
            ("reclaim", "until <= late_at", "until <= late_at + 2000000"),
        ),
        file_sql=(
            ("due", "state = 'leased' AND until <= :now", "state = 'leased' AND until <= :now + 2000000"),
            ("expired", "until <= :now", "until <= :now + 2000000"),
            ("reclaim", "until <= :now", "until <= :now + 2000000"),
        ),
        mongodb=((mongodb_jobs, "is_due", is_due_early), (mongodb_jobs, "reclaim", reclaim_early)),
    ),
}


def apply(name: str | None) -> None:
    """In a process of the campaign."""
    if not name:
        return
    file_store = (leaseway.stores.sqlite.store, "statements", SABOTAGES[name].statements)
    for owner, attribute, instead in (*SABOTAGES[name].code, *SABOTAGES[name].mongodb, file_store):
        assert hasattr(owner, attribute), f"{owner} has no {attribute} any more: this sabotage removes nothing"
        setattr(owner, attribute, instead)


async def apply_sql(name: str, url: str) -> None:
    """In the schema."""
    if not name or not SABOTAGES[name].sql:
        return
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("SET search_path = leaseway")
        for function, text, instead in SABOTAGES[name].sql:
            found = await connection.execute("SELECT pg_get_functiondef(%s::regproc)", [f"leaseway.{function}"])
            row = await found.fetchone()
            assert row is not None
            definition = str(row[0])
            if text not in definition:
                raise LookupError(f"leaseway.{function} does not say {text!r} any more: this sabotage removes nothing")
            await connection.execute(definition.replace(text, instead).encode())
