"""Whether the service lives, and whether it can work. Anybody may ask, so nothing is said that is nobody's business."""

import asyncio
from typing import NamedTuple

from fastapi import Request
from starlette.responses import Response

from leaseway.api.errors import Problem
from leaseway.api.pagination import service_in
from leaseway.api.responses import answer
from leaseway.api.routing import OPEN, Routes
from leaseway.api.ttl_cache import Remembered
from leaseway.domain.errors import LeasewayError, StoreRefused
from leaseway.worker.environment import Environment

routes = Routes("", "health")

DEADLINE_SECONDS = 2.0
BELIEF_SECONDS = 1.0
"""Whoever asks a thousand times a second does not ask the store a thousand times."""
NO_DECISION = frozenset({"limits"})
"""What is told, and keeps nobody away: jobs are taken without it."""


class Check(NamedTuple):
    name: str
    is_ok: bool
    detail: str


@routes.get("/healthz", OPEN)
async def healthz() -> Response:
    """The process lives."""
    return answer({"status": "ok"})


@routes.get("/readyz", OPEN)
async def readyz(request: Request) -> Response:
    """The service can work: its store answers in time, and has the schema that this version needs."""
    if service_in(request).stopping.is_set():
        raise not_ready((Check("service", False, "it is stopping"),))
    checks = await believed(request).get("") or ()
    if not all(check.is_ok for check in checks if check.name not in NO_DECISION):
        raise not_ready(checks)
    return answer({"status": "ready", "checks": documents(checks)})


def not_ready(checks: tuple[Check, ...]) -> Problem:
    missing = "; ".join(f"{check.name}: {check.detail}" for check in checks if not check.is_ok)
    return Problem(503, "not_ready", missing, headers={"Retry-After": "1"}, extra={"checks": documents(checks)})


def documents(checks: tuple[Check, ...]) -> list[dict[str, object]]:
    return [{"name": check.name, "ok": check.is_ok, "detail": check.detail} for check in checks]


def believed(request: Request) -> Remembered[tuple[Check, ...]]:
    state, world = request.app.state, service_in(request).world
    if not hasattr(state, "checks"):

        async def look(_: str) -> tuple[Check, ...]:
            return (await store_check(world), await schema_check(world), await limits_check(world))

        bounds = {"seconds": BELIEF_SECONDS, "absent_seconds": BELIEF_SECONDS}
        state.checks = Remembered[tuple[Check, ...]](look, world.clock, most=1, **bounds)
    checks: Remembered[tuple[Check, ...]] = state.checks
    return checks


async def store_check(world: Environment) -> Check:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            # Something that is read: a clock answers where a file is gone.
            await world.store.schedules()
    except (LeasewayError, TimeoutError):
        return Check("store", False, f"it does not answer within {DEADLINE_SECONDS:g} seconds")
    return Check("store", True, "it answers")


async def schema_check(world: Environment) -> Check:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            versions = await world.store.versions()
    except StoreRefused:
        return Check("schema", False, "the store has one that this version does not know; serve with a newer leaseway")
    except (LeasewayError, TimeoutError):
        return Check("schema", False, "it cannot be looked at")
    if versions.is_due:
        detail = f"version {versions.present}, and {versions.newest} is needed; run: leaseway migrate"
        return Check("schema", False, detail)
    return Check("schema", True, f"version {versions.present}")


async def limits_check(world: Environment) -> Check:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await world.limiter.definitions()
    except (LeasewayError, TimeoutError):
        return Check("limits", False, f"the limiter does not answer within {DEADLINE_SECONDS:g} seconds")
    return Check("limits", True, "the limiter answers")
