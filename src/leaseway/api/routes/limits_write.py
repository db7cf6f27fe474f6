"""/v1/limits: define, change, pause, resume and forget what providers permit."""

from collections.abc import Callable

from fastapi import Request
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from leaseway.api.errors import Problem
from leaseway.api.pagination import Done, changed, changing, check_version, etag_of, pointing, service_in, unknown
from leaseway.api.request_body import body_of
from leaseway.api.responses import answer
from leaseway.api.routing import Routes
from leaseway.api.schemas.limits import definition_body
from leaseway.domain.identity import Scope
from leaseway.domain.limits.limit import TENANT_PREFIX, LimitDefinition, Rate, check_limit, parse_rate
from leaseway.domain.validators import check_name, parse_duration_us
from leaseway.worker.explain_waits import limits_by_name

routes = Routes("/v1/limits", "limits")

NAMES = {"lease": "lease_seconds", "delay": "delay_seconds"}
NAMES |= {f"{part} in microseconds": name for part, name in NAMES.items()}


class RateBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """So many in any window of this length."""

    count: int
    window_seconds: float


class LimitBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A limit as a whole: what is left out is as if it had never been said."""

    rates: list[str | RateBody] = []
    """ "100/minute", or count and window."""
    concurrency: int | None = None
    burst: float = 0.05
    cost_max: int = 1
    lease_seconds: float | None = None
    delay_seconds: float | None = None
    degraded_share: float = 0.0


@routes.put("/{name:path}", Scope.OPERATE, body=LimitBody)
async def put_limit(request: Request, name: str) -> Response:
    """Define a limit, or change it as a whole. In force at once, for everybody."""
    refuse_tenant(name)
    wanted = definition_of(name, await body_of(request, LimitBody))

    def kept(before: LimitDefinition | None) -> LimitDefinition:
        return wanted if before is None else replace(wanted, paused=before.paused)

    return shown_changed(await change_limit(request, name, kept))


@routes.post("/{name:path}/pause", Scope.OPERATE)
async def pause_limit(request: Request, name: str) -> Response:
    """Pause a limit: it grants nothing, to nobody. Calls that are under way go on; jobs wait, and lose no attempt."""
    return shown_changed(await change_limit(request, name, paused(name, True)))


@routes.post("/{name:path}/resume", Scope.OPERATE)
async def resume_limit(request: Request, name: str) -> Response:
    """Resume a limit. Workers notice within some seconds."""
    return shown_changed(await change_limit(request, name, paused(name, False)))


def paused(name: str, is_paused: bool) -> Callable[[LimitDefinition | None], LimitDefinition]:
    refuse_tenant(name)

    def make(before: LimitDefinition | None) -> LimitDefinition:
        if before is None:
            raise unknown("limit", name, "a limit with fields is paused as a whole, by its own name")
        return replace(before, paused=is_paused)

    return make


async def change_limit(
    request: Request, name: str, make: Callable[[LimitDefinition | None], LimitDefinition]
) -> Done[LimitDefinition]:
    limiter = service_in(request).world.limiter

    async def look() -> tuple[LimitDefinition | None, int | None]:
        return (await limits_by_name(limiter)).get(name, (None, None))

    async def change(wanted: LimitDefinition, expected: int) -> int:
        return await limiter.change(wanted, expected=expected)

    async with changing(request):
        return await changed(request, f"limit {name}", look, make, change)


def shown_changed(done: Done[LimitDefinition]) -> Response:
    after = done.after
    shown = {"name": after.name, "version": done.version, "paused": after.paused, "definition": definition_body(after)}
    return answer(shown, 201 if done.before is None else 200, etag_of(done.version))


@routes.delete("/{name:path}", Scope.OPERATE, status_code=204)
async def delete_limit(request: Request, name: str) -> Response:
    """Forget a limit and all that is known of it. Jobs that need it wait until somebody defines it again."""
    refuse_tenant(name)
    limiter = service_in(request).world.limiter
    async with changing(request):
        _, before = (await limits_by_name(limiter)).get(name, (None, None))
        if before is None:
            raise unknown("limit", name)
        check_version(request, f"limit {name}", before)
        await limiter.forget(name)
    return Response(status_code=204)


def refuse_tenant(name: str) -> None:
    if name.startswith(TENANT_PREFIX):
        way_out = f"PUT /v1/tenants/{name.removeprefix(TENANT_PREFIX)}"
        raise Problem(422, "invalid", f"name: {name!r} are the caps of a tenant; change them with {way_out}")


def definition_of(name: str, given: LimitBody) -> LimitDefinition:
    check_name("name", name)
    with pointing(f"limit {name}", "rates", NAMES):
        return check_limit(
            LimitDefinition(
                name=name,
                rates=tuple(sorted(rate_in(name, rate) for rate in given.rates)),
                concurrency=given.concurrency,
                burst_share=given.burst,
                cost_max=given.cost_max,
                lease_us=us_of(f"limit {name}: lease", given.lease_seconds),
                delay_us=us_of(f"limit {name}: delay", given.delay_seconds),
                degraded_share=given.degraded_share,
            )
        )


def rate_in(name: str, given: str | RateBody) -> Rate:
    if isinstance(given, RateBody):
        return parse_rate(f"limit {name}: rates", f"{given.count} per {given.window_seconds:f} second")
    return parse_rate(f"limit {name}: rates", given)


def us_of(field: str, seconds: float | None) -> int | None:
    return None if seconds is None else parse_duration_us(field, seconds, most=60)
