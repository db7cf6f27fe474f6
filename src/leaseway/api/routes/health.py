"""/healthz and /readyz: liveness and readiness. They need no credential, so they reveal no internals."""

import asyncio
from typing import NamedTuple

from fastapi import Request
from msgspec import to_builtins

from leaseway.api.errors import Problem
from leaseway.api.routing import OPEN, Routes
from leaseway.api.schemas.operations import AliveDocument, ReadyCheckDocument, ReadyDocument
from leaseway.api.service import get_service
from leaseway.api.ttl_cache import TtlCache
from leaseway.domain.errors import LeasewayError, StoreRefused
from leaseway.worker.environment import Environment

routes = Routes("", "health")

DEADLINE_SECONDS = 2.0
TTL_SECONDS = 1.0
"""Frequent probes share one set of checks."""
INFORMATIVE = frozenset({"limits"})
"""Checks that do not make the service unready: jobs are accepted without them."""


class ReadyCheck(NamedTuple):
    name: str
    is_ok: bool
    detail: str


ReadyChecks = tuple[ReadyCheck, ...]


@routes.get("/healthz", OPEN)
async def healthz() -> AliveDocument:
    """The process is alive."""
    return AliveDocument(status="ok")


@routes.get("/readyz", OPEN)
async def readyz(request: Request) -> ReadyDocument:
    """The service is ready: its store responds in time and has the required schema."""
    if get_service(request).stopping.is_set():
        raise not_ready((ReadyCheck("service", False, "shutting down"),))
    checks = await cached_checks(request).get("") or ()
    if not all(check.is_ok for check in checks if check.name not in INFORMATIVE):
        raise not_ready(checks)
    return ReadyDocument(status="ready", checks=check_documents(checks))


def not_ready(checks: ReadyChecks) -> Problem:
    missing = "; ".join(f"{check.name}: {check.detail}" for check in checks if not check.is_ok)
    extra = {"checks": to_builtins(check_documents(checks))}
    return Problem(503, "not_ready", missing, headers={"Retry-After": "1"}, extra=extra)


def check_documents(checks: ReadyChecks) -> list[ReadyCheckDocument]:
    return [ReadyCheckDocument(name=check.name, ok=check.is_ok, detail=check.detail) for check in checks]


def cached_checks(request: Request) -> TtlCache[ReadyChecks]:
    state, world = request.app.state, get_service(request).world
    if not hasattr(state, "checks"):

        async def load(_: str) -> ReadyChecks:
            return (await check_store(world), await check_schema(world), await check_limits(world))

        state.checks = TtlCache[ReadyChecks](
            load, world.clock, ttl_seconds=TTL_SECONDS, negative_ttl_seconds=TTL_SECONDS, max_entries=1
        )
    checks: TtlCache[ReadyChecks] = state.checks
    return checks


async def check_store(world: Environment) -> ReadyCheck:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            # A query that reads data: a clock responds even if the file is gone.
            await world.store.schedules.all()
    except (LeasewayError, TimeoutError):
        return ReadyCheck("store", False, f"does not respond within {DEADLINE_SECONDS:g} seconds")
    return ReadyCheck("store", True, "responds")


async def check_schema(world: Environment) -> ReadyCheck:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            versions = await world.store.versions()
    except StoreRefused:
        return ReadyCheck("schema", False, "newer than this version of leaseway supports; upgrade leaseway")
    except (LeasewayError, TimeoutError):
        return ReadyCheck("schema", False, "cannot be read")
    if versions.is_due:
        detail = f"version {versions.present}, but version {versions.newest} is required; run: leaseway migrate"
        return ReadyCheck("schema", False, detail)
    return ReadyCheck("schema", True, f"version {versions.present}")


async def check_limits(world: Environment) -> ReadyCheck:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await world.limiter.definitions.all()
    except (LeasewayError, TimeoutError):
        return ReadyCheck("limits", False, f"the limiter does not respond within {DEADLINE_SECONDS:g} seconds")
    return ReadyCheck("limits", True, "the limiter responds")
