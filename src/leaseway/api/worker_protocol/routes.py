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

from leaseway.api import request_body
from leaseway.api.errors import Problem
from leaseway.api.routing import COMPONENTS, Authenticated, Routes
from leaseway.api.service import get_service
from leaseway.api.worker_protocol.authorization import handle_call
from leaseway.api.worker_protocol.validation import check_body
from leaseway.domain.errors import StoreBusy, StoreFull, UnknownBudget, UnknownLimit, UnknownOutcome
from leaseway.domain.identity import Scope
from leaseway.ports.definitions import ScheduleStore, TenantStore
from leaseway.ports.job_store import JobOperations, JobStore
from leaseway.ports.ledger import BudgetDefinitions, BudgetReads, Ledger
from leaseway.ports.limiter import LimitDefinitions, Limiter
from leaseway.ports.reads import JobReads
from leaseway.stores.http.protocol import PREFIX, VERBS, WAIT_SECONDS_MAX, Verb
from leaseway.stores.http.requests import EmptyRequest
from leaseway.stores.http.responses import Value

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
    return dict(zip(kinds, found, strict=True)), {f"Work.{name}": schema for name, schema in components.items()}


SCHEMAS_BY_TYPE, FOUND = build_schemas()
COMPONENTS.update(FOUND)
PORTS: dict[str, Any] = {
    "store.jobs": JobStore, "store.operations": JobOperations, "store.reads": JobReads,
    "store.schedules": ScheduleStore, "store.tenants": TenantStore,
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

BYTES_MAX = 64 * 1024 * 1024
"""A submission of 5,000 jobs is one transaction, and so one body."""
LARGE_BYTES = 1024 * 1024
"""Larger bodies are parsed in a thread, so that they do not block the event loop."""
LONG_INTEGER = re.compile(rb"\d{19}")
INTEGER_MAX = 2**63 - 1
RETRY = {"Retry-After": "1"}
WAIT_SECONDS = 5.0


def add_route(verb: Verb[Any, Any]) -> None:
    async def endpoint(request: Request, caller: Authenticated) -> Struct:
        body = await read_call(request, verb.body)
        with store_errors():
            check_body(body)
            reply = await handle_call(verb, get_service(request).world, caller, body)
        get_service(request).work_counters.count_call(verb, body, reply)
        return render_reply(verb, reply)

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


async def read_call(request: Request, kind: type[Any]) -> Any:
    try:
        raw = await request_body.read_bytes(request, BYTES_MAX)
    except ClientDisconnect as error:
        # The client disconnected before the request was read, and will repeat it.
        raise Problem(408, "too_slow", "the client disconnected before its request was read") from error
    request_body.check_content_type(request)
    if len(raw) > LARGE_BYTES:
        return await asyncio.to_thread(parse_call, raw, kind)
    return parse_call(raw, kind)


def parse_call(raw: bytes, kind: type[Any]) -> Any:
    if LONG_INTEGER.search(raw):
        request_body.check_json(raw)
        json.loads(raw, parse_int=check_integer)
    return request_body.parse_strictly(raw, kind)


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
