"""/v1/work: the store, the limiter and the ledger over HTTP, with one route per verb.

`leaseway.stores.http.protocol` is the table of verbs, bodies and responses; the client in the same package is a store.
An error becomes a problem whose code identifies the exception, above all if the outcome is unknown.

OpenAPI schemas of this protocol have a prefix, because domain values share their names with documents of other routes.
"""

import asyncio
import inspect
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, get_args, get_origin

import msgspec
from fastapi import Query, Request
from msgspec import Struct
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from leaseway.api import request_body
from leaseway.api.errors import Problem
from leaseway.api.routing import COMPONENTS, Authenticated, Routes, json_response
from leaseway.api.service import get_service
from leaseway.api.tenant_quotas import admit_call
from leaseway.api.worker_protocol.authorization import accept_jobs_in, handle_call, has_tenant_rule, searching_tenant
from leaseway.api.worker_protocol.validation import check_body, redact_errors
from leaseway.domain.errors import StoreBusy, StoreFull, UnknownBudget, UnknownLimit, UnknownOutcome, UsageError
from leaseway.domain.identity import Scope
from leaseway.ports.definitions import ScheduleStore, TenantStore
from leaseway.ports.history import HistoryStore
from leaseway.ports.job_store import JobOperations, JobStore
from leaseway.ports.ledger import BudgetDefinitions, BudgetReads, Ledger
from leaseway.ports.limiter import LimitDefinitions, Limiter
from leaseway.ports.reads import JobReads
from leaseway.ports.workers import WorkerRegistry
from leaseway.stores.http.messages import EmptyRequest, Value
from leaseway.stores.http.protocol import EXCHANGE, PREFIX, VERBS, WAIT_SECONDS_MAX, Verb

REF = "#/components/schemas/Work."
QUALIFIED = "leaseway.domain."
"""The prefix that msgspec adds if two values have the same name."""


def wrapped_type(kind: Any) -> Any:
    """The type of a value that is wrapped in an object for the wire."""
    return get_args(kind)[0] if get_origin(kind) is Value else kind


def build_schemas() -> tuple[dict[Any, Any], dict[str, Any]]:
    """Schemas by type, and the components that they refer to."""
    kinds = list(dict.fromkeys([bool, *(wrapped_type(kind) for verb in VERBS for kind in (verb.body, verb.reply))]))
    made = msgspec.json.encode(msgspec.json.schema_components(kinds, ref_template=REF + "{name}"))
    found, components = msgspec.json.decode(made.replace(QUALIFIED.encode(), b""))
    # Client generators derive class names from titles.
    named = {f"Work.{name}": schema | {"title": f"Work{name}"} for name, schema in components.items()}
    return dict(zip(kinds, found, strict=True)), named


SCHEMAS_BY_TYPE, FOUND = build_schemas()
COMPONENTS.update(FOUND)
PORTS: dict[str, Any] = {
    "store.jobs": JobStore, "store.operations": JobOperations, "store.reads": JobReads,
    "store.schedules": ScheduleStore, "store.tenants": TenantStore, "store.workers": WorkerRegistry,
    "store.history": HistoryStore,
    "limiter": Limiter, "limiter.definitions": LimitDefinitions,
    "ledger": Ledger, "ledger.definitions": BudgetDefinitions, "ledger.reads": BudgetReads,
}  # fmt: skip


def type_schema(kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMAS_BY_TYPE[wrapped_type(kind)]
    if wrapped_type(kind) is kind:
        return found
    return {"type": "object", "properties": {"value": found}, "required": ["value"]}


def verb_options(verb: Verb[Any, Any]) -> dict[str, Any]:
    """The options of a route. Its description is the docstring of the port's method."""
    body = {"application/json": {"schema": type_schema(verb.body)}}
    promise = inspect.getdoc(getattr(PORTS[verb.port], verb.method)) or ""
    return {
        **response_options(verb.reply),
        "description": promise,
        "openapi_extra": {"requestBody": {"required": True, "content": body}},
    }


def response_options(kind: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": type_schema(kind)}}
    return {"responses": {200: {"description": "Success", "content": content}}}


routes = Routes(PREFIX, "work")

LONG_INTEGER = re.compile(rb"\d{19}")
INTEGER_MAX = 2**63 - 1
RETRY = {"Retry-After": "1"}
WAIT_SECONDS = 5.0


def add_route(verb: Verb[Any, Any]) -> None:
    if not has_tenant_rule(verb):
        raise UsageError(f"{verb.url} has no rule for callers of one tenant; add one to worker_protocol/authorization")

    async def endpoint(request: Request, caller: Authenticated) -> Struct | Response:
        service, body = get_service(request), await read_call(request, verb)
        with store_errors():
            body = await accept_jobs_in(service.app, service.metering, caller, await redact_errors(body))
            turn = service.searches.turn(searching_tenant(verb, caller))
            async with turn, admit_call(service.quotas, caller, body) as call:
                reply = await handle_call(verb, service.world, caller, call, service.metering)
        service.work_counters.count_call(verb, call, reply)
        # `bound_reply` has bounded the leases.
        return render_reply(verb, reply) if verb is not EXCHANGE else json_response(reply, bytes_max=None)

    routes.post(verb.path, verb.scope, **verb_options(verb))(endpoint)


@routes.get("/wait", Scope.WORK, **response_options(Value[bool]))
async def wait(
    request: Request, caller: Authenticated, seconds: Annotated[float, Query(ge=0, le=WAIT_SECONDS_MAX)] = WAIT_SECONDS
) -> Value[bool]:
    """Wait for a notification that there may be work.

    It arrives shortly after something was written. Notifications may be late, lost or spurious: poll in addition.
    """
    service = get_service(request)
    notified = asyncio.ensure_future(service.world.store.notifications.wait(seconds))
    stopped = asyncio.ensure_future(service.stopping.wait())
    try:
        await asyncio.wait({notified, stopped}, return_when=asyncio.FIRST_COMPLETED)
        with store_errors():
            return Value(notified.done() and notified.result())
    finally:
        for task in (notified, stopped):
            task.cancel()


# -- bodies and replies ---------------------------------------------------------------------------------------------


async def read_call(request: Request, verb: Verb[Any, Any]) -> Any:
    try:
        raw = await request_body.read_bytes(request, verb.bytes_max)
    except ClientDisconnect as error:
        # The client disconnected before the request was read, and will repeat it.
        raise Problem(408, "too_slow", "the client disconnected before its request was read") from error
    request_body.check_content_type(request)
    return await request_body.parse_off_the_loop(raw, verb.body, parse_call)


def parse_call(raw: bytes, kind: type[Any]) -> Any:
    if LONG_INTEGER.search(raw):
        request_body.check_json(raw)
        json.loads(raw, parse_int=check_integer)
    body = request_body.parse_strictly(raw, kind)
    check_body(body)
    return body


def check_integer(digits: str) -> int:
    """Larger integers do not fit into a database."""
    if len(digits) > 20 or abs(int(digits)) > INTEGER_MAX:
        raise Problem(422, "invalid", f"the body: the number {digits[:30]} is too large")
    return int(digits)


def render_reply(verb: Verb[Any, Any], reply: Any) -> Struct:
    """The response in the form that the table of verbs declares."""
    if verb.reply is EmptyRequest:
        return EmptyRequest()
    if get_origin(verb.reply) is Value:
        return Value(reply)
    made: Struct = verb.reply.of(reply) if hasattr(verb.reply, "of") else reply
    return made


@contextmanager
def store_errors() -> Iterator[None]:
    """Errors that a client must distinguish get codes of their own."""
    try:
        yield
    except UnknownLimit as error:
        raise Problem(422, "unknown_limit", str(error)) from error
    except UnknownBudget as error:
        raise Problem(422, "unknown_budget", str(error)) from error
    except StoreBusy as error:
        raise Problem(503, "busy", "other writers hold the store; nothing was written", headers=RETRY) from error
    except StoreFull as error:
        raise Problem(503, "full", "the store is full; nothing was written", headers=RETRY) from error
    except UnknownOutcome as error:
        raise Problem(
            503, "unknown_outcome", "the reply of the store was lost; repeat the same call", headers=RETRY
        ) from error


for each in VERBS:
    add_route(each)
