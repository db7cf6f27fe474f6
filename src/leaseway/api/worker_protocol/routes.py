"""/v1/work: what workers do, over HTTP. One route for each verb of a store, a limiter and a ledger.

The table of verbs, bodies and answers is `leaseway.stores.http.protocol`; the client beside it is one more store.
An error becomes a problem whose code names the exception, above all when the outcome is unknown.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn, get_origin

from fastapi import Query, Request
from msgspec import Struct
from starlette.requests import ClientDisconnect

from leaseway.api import request_body
from leaseway.api.errors import Problem
from leaseway.api.routing import Authenticated, Routes
from leaseway.api.service import get_service
from leaseway.api.worker_protocol.authorization import answer_to
from leaseway.api.worker_protocol.openapi import answering, described
from leaseway.api.worker_protocol.validation import check
from leaseway.domain.errors import StoreBusy, StoreFull, UnknownBudget, UnknownLimit, UnknownOutcome
from leaseway.domain.identity import Scope
from leaseway.stores.http.protocol import PREFIX, VERBS, WAIT_SECONDS_MAX, Verb
from leaseway.stores.http.requests import Nothing
from leaseway.stores.http.responses import Said

routes = Routes(PREFIX, "work")

BYTES_MAX = 64 * 1024 * 1024
"""A submission of 5,000 jobs is one transaction, and so one body."""
LARGE_BYTES = 1024 * 1024
"""From here on a body is read in a thread, beside the loop."""
LONG = re.compile(rb"\d{19}")
INTEGER_MAX = 2**63 - 1
RETRY = {"Retry-After": "1"}
WAIT_SECONDS = 5.0


def add(verb: Verb[Any, Any]) -> None:
    async def endpoint(request: Request, caller: Authenticated) -> Struct:
        asked = await asked_of(request, verb.body)
        with told():
            check(asked)
            said = await answer_to(verb, get_service(request).world, caller, asked)
        get_service(request).work_counters.count_call(verb, asked, said)
        return worded(verb, said)

    routes.post(verb.path, verb.scope, **described(verb))(endpoint)


@routes.get("/wait", Scope.WORK, **answering(Said[bool]))
async def wait(
    request: Request, caller: Authenticated, seconds: Annotated[float, Query(ge=0, le=WAIT_SECONDS_MAX)] = WAIT_SECONDS
) -> Said[bool]:
    """Wait for a hint that there may be work.

    It comes soon after something was written by anybody. Hints may be late, lost or wrong: look now and then anyway."""
    service = get_service(request)
    hinted = asyncio.ensure_future(service.world.store.notifications.wait(seconds))
    stopped = asyncio.ensure_future(service.stopping.wait())
    try:
        await asyncio.wait({hinted, stopped}, return_when=asyncio.FIRST_COMPLETED)
        with told():
            return Said(hinted.done() and hinted.result())
    finally:
        for task in (hinted, stopped):
            task.cancel()


# -- bodies and answers ---------------------------------------------------------------------------------------------


async def asked_of(request: Request, kind: type[Any]) -> Any:
    try:
        raw = await request_body.read_bytes(request, BYTES_MAX)
    except ClientDisconnect as error:
        # He did not wait for the answer, and will ask again: what nobody hears is not begun.
        raise Problem(408, "too_slow", "the client has left before its request was read") from error
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in ("application/json", ""):
        raise Problem(415, "not_json", f"the body must be application/json (is {content_type[:100]})")
    if len(raw) > LARGE_BYTES:
        return await asyncio.to_thread(read, raw, kind)
    return read(raw, kind)


def read(raw: bytes, kind: type[Any]) -> Any:
    if LONG.search(raw):
        request_body.check_json(raw)
        json.loads(raw, parse_int=in_bounds)
    return request_body.parse_strictly(raw, kind)


def in_bounds(digits: str) -> int:
    """No database counts further."""
    if len(digits) > 20 or abs(int(digits)) > INTEGER_MAX:
        refuse_number(digits)
    return int(digits)


def refuse_number(digits: str) -> NoReturn:
    raise Problem(422, "invalid", f"the body: the number {digits[:30]} is too large")


def worded(verb: Verb[Any, Any], said: Any) -> Struct:
    """As the table has it."""
    if verb.answer is Nothing:
        return Nothing()
    if get_origin(verb.answer) is Said:
        return Said(said)
    made: Struct = verb.answer.of(said) if hasattr(verb.answer, "of") else said
    return made


@contextmanager
def told() -> Iterator[None]:
    """Exceptions that a client must be able to tell from others, by codes of their own."""
    try:
        yield
    except UnknownLimit as error:
        raise Problem(422, "unknown_limit", str(error)) from error
    except UnknownBudget as error:
        raise Problem(422, "unknown_budget", str(error)) from error
    except StoreBusy as error:
        raise Problem(503, "busy", "others hold the store; nothing was written", headers=RETRY) from error
    except StoreFull as error:
        raise Problem(503, "full", "the store has no room left; nothing was written", headers=RETRY) from error
    except UnknownOutcome as error:
        raise Problem(
            503, "unknown_outcome", "the store's reply was lost: make the same call again", headers=RETRY
        ) from error


for each in VERBS:
    add(each)
