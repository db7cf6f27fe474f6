"""Safeguards that can be removed, to show that the checker notices: `./dev chaos --sabotage NAME`.

The product has no code for this: the worker and submitter programs of the campaign replace a function of the product
when the environment says so, and the supervisor replaces a function of the schema. A run with a sabotage must end with
a violation.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from msgspec import Struct
from msgspec.structs import replace

import leaseway.app
from leaseway.domain.errors import TransientError, UnknownOutcome
from leaseway.domain.job import NewJob, Submitted
from leaseway.ports.clock import Clock
from leaseway.ports.job_store import JobStore
from leaseway.system import SystemIds
from leaseway.worker import submit as submitting
from leaseway.worker.attempt import Attempt, Stop
from leaseway.worker.lease_renewal import LeaseRenewal
from leaseway.worker.slots import Slots

SABOTAGE = "CHAOS_SABOTAGE"

IDS = SystemIds()
real_halt = Slots.halt


class Sabotage(Struct, frozen=True, kw_only=True):
    removes: str
    """The safeguard that is removed, in one sentence."""
    code: tuple[tuple[Any, str, Callable[..., Any]], ...] = ()
    """(owner, name, replacement)"""
    sql: tuple[tuple[str, str, str], ...] = ()
    """(function of the schema, text in it, replacement)"""


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
            ("settle_others", "jobs.token = starts.token", f"jobs.token {ANY}"),
        ),
    ),
    "checkpoint_any_token": Sabotage(
        removes="a checkpoint compares the token, and a handler is told that its lease is lost",
        code=UNTOLD,
        sql=(("checkpoint", "token = held_token AND until > coalesce(at, now_us())", f"token {ANY}"),),
    ),
    "reclaim_early": Sabotage(
        removes="only expired leases are taken back",
        sql=(
            ("any_expired", "until <= instant", "until <= instant + 2000000"),
            ("reclaim", "until <= instant", "until <= instant + 2000000"),
        ),
    ),
}


def apply(name: str | None) -> None:
    """In a process of the campaign."""
    for owner, attribute, instead in SABOTAGES[name].code if name else ():
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
