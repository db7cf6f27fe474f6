"""/v1/limits: what providers permit, how much of it is in use, and how limits are changed."""

from functools import partial

from fastapi import Request
from msgspec import Struct
from msgspec.structs import replace

from leaseway.api.errors import Problem, not_found
from leaseway.api.inspection import try_read_levels
from leaseway.api.pagination import PageLimit, paginate
from leaseway.api.preconditions import (
    PRECONDITION_HEADERS,
    PRECONDITION_PROBLEMS,
    change_lock,
    check_version,
    etag,
)
from leaseway.api.request_body import body_fields, read_body
from leaseway.api.routing import Authenticated, DocumentPage, Reply, Routes
from leaseway.api.schemas.limits import LimitChangedDocument, LimitDocument, limit_definition_document, limit_document
from leaseway.api.service import get_service
from leaseway.domain.identity import Scope
from leaseway.domain.limits.limit import (
    REQUESTS,
    TENANT_PREFIX,
    LimitDefinition,
    PermitRequest,
    Rate,
    StartLevel,
    check_limit,
    default_cost_max,
    parse_rate,
)
from leaseway.domain.limits.templates import matching_limit, template_fields
from leaseway.domain.validators import check_name, parse_duration_us
from leaseway.worker.definitions import DefinitionChange, VersionedDefinitions, limit_definitions
from leaseway.worker.environment import Environment
from leaseway.worker.explain_waits import Defined, limits_by_name

routes = Routes("/v1/limits", "limits")


@routes.get("", Scope.OPERATE, problems=(400,))
async def list_limits(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[LimitDocument]:
    """List limits, how much of each is in use, and when it has permits again."""
    world = get_service(request).world
    defined = await limits_by_name(world.limiter)
    shown, more = paginate(request, caller, sorted(defined), str, limit, cursor)
    seen = await try_read_levels(
        world.limiter, [PermitRequest(name, name) for name in shown if not template_fields(name)]
    )
    now = await world.store.reads.now()
    return DocumentPage(
        [limit_document(*defined[name], seen.get(PermitRequest(name, name)), now) for name in shown], more
    )


@routes.get("/{name:path}", Scope.OPERATE)
async def show_limit(request: Request, name: str) -> Reply[LimitDocument]:
    """Show one limit. The name may also be an instance of a limit with fields: maps:acme for maps:{tenant}."""
    world = get_service(request).world
    definition, version = find_definition(name, await limits_by_name(world.limiter))
    seen = await try_read_levels(world.limiter, [] if template_fields(name) else [PermitRequest(name, definition.name)])
    shown = limit_document(definition, version, next(iter(seen.values()), None), await world.store.reads.now())
    shown.name, shown.limit = name, definition.name
    return Reply(shown, headers=etag(version))


def find_definition(name: str, defined: Defined) -> tuple[LimitDefinition, int]:
    limit = matching_limit(name, defined)
    if limit is None:
        advice = "a worker declares it with the first job that needs it, or you define it with PUT"
        raise not_found("limit", name, advice)
    return defined[limit]


FIELD_NAMES = {"lease": "lease_seconds", "delay": "delay_seconds"}
FIELD_NAMES |= {f"{field} in microseconds": name for field, name in FIELD_NAMES.items()}


class RateBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """At most `count` in any window of this length."""

    count: int
    window_seconds: float


class LimitBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A whole limit: omitted fields have their default values."""

    rates: list[str | RateBody] = []
    """ "100/minute", or count and window."""
    concurrency: int | None = None
    burst: float = 0.05
    cost_max: int | None = None
    """The largest weight of one call; null: 1, or the whole count if the unit is not requests."""
    lease_seconds: float | None = None
    delay_seconds: float | None = None
    degraded_share: float = 0.0
    start: StartLevel | None = None
    """The level of a limit without state; null: full if it is known that nothing was used, else empty."""
    unit: str = REQUESTS
    """What the provider counts: requests, tokens, input_tokens, …"""
    breaker: int | None = None
    """The number of consecutive failed calls that opens the circuit breaker; null: the limit has no circuit breaker."""


@routes.put(
    "/{name:path}", Scope.OPERATE, body=LimitBody, problems=PRECONDITION_PROBLEMS, also=(201,),
    headers=PRECONDITION_HEADERS,
)  # fmt: skip
async def put_limit(request: Request, name: str) -> Reply[LimitChangedDocument]:
    """Define a limit, or replace its definition. It takes effect immediately for all workers."""
    refuse_tenant_cap(name)
    wanted = parse_definition(name, await read_body(request, LimitBody))

    def make(before: LimitDefinition | None) -> LimitDefinition:
        return wanted if before is None else replace(wanted, paused=before.paused)

    definitions = limits_in(get_service(request).world)
    async with change_lock(request):
        return changed_limit(await definitions.change(name, make, partial(check_version, request, f"limit {name}")))


@routes.post("/{name:path}/pause", Scope.OPERATE, problems=PRECONDITION_PROBLEMS, headers=PRECONDITION_HEADERS)
async def pause_limit(request: Request, name: str) -> Reply[LimitChangedDocument]:
    """Pause a limit: it grants no permits. Calls in flight finish; jobs wait without using attempts."""
    return await set_paused(request, name, True)


@routes.post("/{name:path}/resume", Scope.OPERATE, problems=PRECONDITION_PROBLEMS, headers=PRECONDITION_HEADERS)
async def resume_limit(request: Request, name: str) -> Reply[LimitChangedDocument]:
    """Resume a limit. Jobs that wait for it are tried at once."""
    return await set_paused(request, name, False)


@routes.delete(
    "/{name:path}", Scope.OPERATE, status_code=204, problems=PRECONDITION_PROBLEMS, headers=PRECONDITION_HEADERS
)
async def delete_limit(request: Request, name: str) -> None:
    """Forget a limit and its level. Jobs that need it wait until it is defined again."""
    refuse_tenant_cap(name)
    definitions = limits_in(get_service(request).world)
    async with change_lock(request):
        await definitions.forget(name, partial(check_version, request, f"limit {name}"))


async def set_paused(request: Request, name: str, is_paused: bool) -> Reply[LimitChangedDocument]:
    refuse_tenant_cap(name)
    definitions = limits_in(get_service(request).world)
    async with change_lock(request):
        return changed_limit(await definitions.pause(name, is_paused, partial(check_version, request, f"limit {name}")))


def limits_in(world: Environment) -> VersionedDefinitions[LimitDefinition]:
    return limit_definitions(world.limiter, world.store.operations)


def changed_limit(change: DefinitionChange[LimitDefinition]) -> Reply[LimitChangedDocument]:
    after = change.after
    document = LimitChangedDocument(
        name=after.name, version=change.version, paused=after.paused, definition=limit_definition_document(after)
    )
    return Reply(document, 201 if change.before is None else 200, etag(change.version))


def refuse_tenant_cap(name: str) -> None:
    if name.startswith(TENANT_PREFIX):
        route = f"PUT /v1/tenants/{name.removeprefix(TENANT_PREFIX)}"
        raise Problem(422, "invalid", f"name: {name!r} contains the caps of a tenant; change them with {route}")


def parse_definition(name: str, given: LimitBody) -> LimitDefinition:
    check_name("name", name)
    with body_fields(f"limit {name}", "rates", FIELD_NAMES):
        rates = tuple(sorted(parse_rate_body(name, rate) for rate in given.rates))
        return check_limit(
            LimitDefinition(
                name=name,
                rates=rates,
                concurrency=given.concurrency,
                burst_share=given.burst,
                cost_max=default_cost_max(given.unit, rates) if given.cost_max is None else given.cost_max,
                lease_us=parse_seconds(f"limit {name}: lease", given.lease_seconds),
                delay_us=parse_seconds(f"limit {name}: delay", given.delay_seconds),
                degraded_share=given.degraded_share,
                start=given.start,
                unit=given.unit,
                breaker=given.breaker,
            )
        )


def parse_rate_body(name: str, given: str | RateBody) -> Rate:
    if isinstance(given, RateBody):
        return parse_rate(f"limit {name}: rates", f"{given.count} per {given.window_seconds:f} second")
    return parse_rate(f"limit {name}: rates", given)


def parse_seconds(field: str, seconds: float | None) -> int | None:
    return None if seconds is None else parse_duration_us(field, seconds, most=60)
