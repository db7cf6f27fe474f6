"""Every route of the service × own, foreign, missing, expired and revoked credentials.

The routes are read from the service, so a new route is part of the matrix automatically. A route that takes the id of
something that belongs to a tenant needs an entry here; otherwise the matrix fails. Every verb of the worker protocol
needs a rule for callers of one tenant, and an attack in tests/attacks/test_worker_verbs.py.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import httpx2
import pytest
from fastapi import APIRouter, FastAPI
from tests.api.issuer import AUDIENCE, ISSUER, NOW, issuing, token
from tests.api.keys import key_for, operator_of
from tests.api.live_clients import TRANSPORTS, has
from tests.api.running_service import Served, run_service

from leaseway import App
from leaseway.api.app import refuse_unscoped
from leaseway.api.routing import OPEN, Routes, every_route, required_scope
from leaseway.api.worker_protocol.authorization import FOR_OPERATORS, has_tenant_rule
from leaseway.api.worker_protocol.routes import add_route
from leaseway.domain.errors import UsageError
from leaseway.domain.identity import FORM, ROLE_SCOPES, Role, Scope
from leaseway.stores.http.messages import EmptyRequest
from leaseway.stores.http.protocol import PAUSE, VERBS, Verb

WAIT_SECONDS = 10
NOBODY = "00000000000000000000000000"
PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")

ONE = {"job": "{job}"}
SOME = {"which": {"ids": ["{finished}", "{job}"]}, "limit": 10}
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/jobs"): {"kind": "add", "arguments": {"a": 1}},
    ("POST", "/v1/jobs/bulk"): {"items": [{"kind": "add", "arguments": {"a": 1}}]},
    ("POST", "/v1/jobs/cancel"): {"ids": ["{job}"]},
    ("POST", "/v1/jobs/retry"): {"ids": ["{finished}"]},
    ("POST", "/v1/jobs/discard"): {"ids": ["{finished}"]},
    ("POST", "/v1/work/jobs/show"): ONE,
    ("POST", "/v1/work/jobs/errors"): ONE,
    ("POST", "/v1/work/jobs/cancel"): ONE,
    ("POST", "/v1/work/jobs/list"): SOME,
    ("POST", "/v1/work/jobs/retry"): SOME,
    ("POST", "/v1/work/jobs/discard"): SOME,
    ("POST", "/v1/work/jobs/run-now"): SOME,
    ("POST", "/v1/work/submit"): {"jobs": []},
    ("POST", "/v1/keys"): {"tenant": "acme"},
    ("POST", "/v1/keys/{id}/rotate"): {},
}
"""Valid request bodies; other routes get {}. Every id of a tenant's resource that a body can contain must be listed
here.
"""
QUERIES = {"/v1/work/wait": "?seconds=0"}
"""Requests must not wait for long polls."""
BELONGINGS = {"/v1/jobs/": "job", "/v1/keys/": "key", "/v1/tenants/": "tenant"}
"""The resource that a path names, by prefix of the path."""
OF_NO_TENANT = ("/v1/imports/",)
"""Routes for tenants whose paths do not name a tenant's resource: specs that the service was started with."""
MAKES_A_KEY = {("POST", "/v1/keys", 201), ("POST", "/v1/keys/{id}/rotate", 201)}
REFUSED_BY_STATE = {409}
"""The sample job is not in the required state; only its owner may learn that."""


class Row(NamedTuple):
    method: str
    path: str
    scope: str

    def filled(self, things: dict[str, str]) -> str:
        what = next((thing for prefix, thing in BELONGINGS.items() if self.path.startswith(prefix)), "")
        return PARAMETER.sub(things.get(what, NOBODY), self.path) + QUERIES.get(self.path, "")

    def body(self, things: dict[str, str]) -> Any:
        if self.method in ("GET", "DELETE"):
            return None
        text = json.dumps(BODIES.get((self.method, self.path), {}))
        for name, value in things.items():
            text = text.replace(f"{{{name}}}", value)
        return json.loads(text)

    def names(self, things: dict[str, str]) -> bool:
        """Whether the route names a resource in its path or in its body."""
        return bool(PARAMETER.search(self.path)) or any(
            each in json.dumps(self.body(things)) for each in things.values()
        )

    @property
    def is_a_tenants(self) -> bool:
        return Scope(self.scope) in ROLE_SCOPES[Role.TENANT]


def rows_of(api: FastAPI) -> Iterator[Row]:
    for route in every_route(api.routes):
        scope = required_scope(route)
        for method in sorted(getattr(route, "methods", None) or ()):
            if scope not in (None, OPEN):
                yield Row(method, getattr(route, "path", ""), str(scope))


class Town(NamedTuple):
    served: Served
    things: dict[str, str]
    clients: dict[str, httpx2.AsyncClient]

    async def ask(self, who: str, row: Row, things: dict[str, str] | None = None) -> httpx2.Response:
        """Send a request; of a stream, read only the beginning."""
        things = self.things if things is None else things
        client, body = self.clients[who], row.body(things)
        request = client.build_request(row.method, row.filled(things), json=body)
        async with asyncio.timeout(WAIT_SECONDS):
            reply = await client.send(request, stream=True)
            if reply.headers.get("content-type", "").startswith("text/event-stream"):
                reply._content = b""
            else:
                await reply.aread()
            await reply.aclose()
        return reply


@pytest.fixture
async def town(app: App) -> AsyncIterator[Town]:
    async with AsyncExitStack() as stack:
        issuer = await stack.enter_async_context(issuing())
        settings = {"auth": True, "issuer": ISSUER, "audience": AUDIENCE, "jwks_url": issuer.url}
        served = await stack.enter_async_context(run_service(app, **settings))
        own, revoked = await key_for(served), await operator_of(served)
        await served.service.world.store.keys.revoke(revoked.key.id)
        texts = {
            "own": own.text,
            "other": (await key_for(served, "other")).text,
            "operator": (await operator_of(served)).text,
            "worker": (await key_for(served, None, Role.WORKER)).text,
            "own worker": (await key_for(served, "acme", Role.WORKER)).text,
            "none": None,
            "expired": (await operator_of(served, life_us=1)).text,
            "revoked": revoked.text,
            "wrong": f"{own.text[:16]}{'A' * 27}",
            "late token": token(exp=NOW - 100, scope=" ".join(Scope)),
            "token of another issuer": token(iss="https://other.example", scope=" ".join(Scope)),
        }
        clients = {
            who: await stack.enter_async_context(served.with_key(text) if text else without_key(served))
            for who, text in texts.items()
        }
        body = {"kind": "add", "arguments": {"a": 41}}
        waiting, over = [(await clients["own"].post("/v1/jobs", json=body)).json()["id"] for _ in range(2)]
        await clients["own"].post(f"/v1/jobs/{over}/cancel")
        await clients["operator"].put("/v1/tenants/acme", json={"weight": 3})
        yield Town(served, {"job": waiting, "finished": over, "key": own.key.id, "tenant": "acme"}, clients)


def without_key(served: Served) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=served.url, timeout=30, trust_env=False)


def who_may(row: Row) -> str:
    """A caller whose credential has the scope."""
    if row.is_a_tenants:
        return "own"
    return "worker" if row.scope == Scope.WORK else "operator"


async def test_who_has_no_valid_credential_gets_nowhere(town: Town) -> None:
    """This must hold for every route, before any other part of the request is processed."""
    holes: list[tuple[object, ...]] = []
    for row in rows_of(town.served.api):
        for who in ("none", "expired", "revoked", "wrong", "late token", "token of another issuer"):
            reply = await town.ask(who, row)
            if reply.status_code != 401 or reply.json()["code"] != "not_authenticated":
                holes.append((who, *row, reply.status_code))
    assert holes == []


async def test_who_lacks_the_scope_is_told_so(town: Town) -> None:
    """Roles do not include each other: a worker cannot submit, and an operator cannot lease."""
    holes: list[tuple[object, ...]] = []
    for row in rows_of(town.served.api):
        for who, role in (("own", Role.TENANT), ("operator", Role.OPERATOR), ("worker", Role.WORKER)):
            if Scope(row.scope) not in ROLE_SCOPES[role]:
                reply = await town.ask(who, row)
                if reply.status_code != 403 or row.scope not in reply.json()["detail"]:
                    holes.append((who, *row, reply.status_code))
    assert holes == []


async def test_who_may_is_let_in(town: Town) -> None:
    """Routes with a sample in this file must succeed; all others must at least be reached. A response must not contain
    a key, except the response that creates one.
    """
    holes: list[tuple[object, ...]] = []
    for row in sorted(rows_of(town.served.api), key=lambda row: row.method == "DELETE"):
        reply = await town.ask(who_may(row), row)
        is_known = (row.method, row.path) in BODIES or row.path.startswith(tuple(BELONGINGS))
        fine = reply.is_success or (reply.status_code in REFUSED_BY_STATE if is_known else reply.status_code < 500)
        if not fine or reply.status_code in (401, 403):
            holes.append((*row, reply.status_code, reply.text[:200]))
        if FORM.search(reply.text) and (*row[:2], reply.status_code) not in MAKES_A_KEY:
            holes.append((*row, "shows a key"))
    assert holes == []


async def test_what_belongs_to_another_tenant_is_like_nothing(town: Town) -> None:
    """A 403 would reveal that the resource exists, so the response must equal that for an unknown id, and nothing may
    change.
    """
    before = await belongings(town)
    nothing = dict.fromkeys(town.things, NOBODY)
    holes: list[tuple[object, ...]] = []
    for row in rows_of(town.served.api):
        if not row.is_a_tenants or not row.names(town.things):
            continue
        if not row.path.startswith((*BELONGINGS, *OF_NO_TENANT, "/v1/work/")):
            holes.append((*row, "whose is what this path names? Say it in BELONGINGS or OF_NO_TENANT"))
        foreign, unknown = await town.ask("other", row), await town.ask("other", row, nothing)
        if PARAMETER.search(row.path) and row.path.startswith(tuple(BELONGINGS)) and foreign.status_code != 404:
            holes.append((*row, foreign.status_code))
        if is_told_apart(foreign, unknown, town.things):
            holes.append((*row, foreign.text, unknown.text))
    assert holes == []
    assert await belongings(town) == before


async def test_the_matrix_fills_every_id_that_a_body_can_contain(town: Town) -> None:
    """A route with ids in its body and without a sample would be asked for nothing that belongs to another tenant."""
    described = town.served.api.openapi()
    named = {"ids", "job", "which"}
    missing = [
        (method.upper(), path)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
        if named & properties(described, operation) and (method.upper(), path) not in BODIES
        if Scope(next(row.scope for row in rows_of(town.served.api) if row.path == path)) in ROLE_SCOPES[Role.TENANT]
    ]
    assert missing == []


def properties(described: dict[str, Any], operation: dict[str, Any]) -> set[str]:
    """The fields of the operation's body."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    name = content.get("$ref", "").rpartition("/")[2]
    return set(described["components"]["schemas"].get(name, content).get("properties", ()))


async def test_no_job_is_submitted_under_the_id_of_another_tenant(town: Town) -> None:
    """The one place where a foreign id differs from an unknown one: a silent success would lose the job that is
    submitted. The response must not say whose id it is, and nothing may change.
    """
    before = await belongings(town)
    for name in ("job", "finished"):
        job = {"id": town.things[name], "kind": "add", "payload": '{"a":1}'}
        foreign = await town.clients["other"].post("/v1/work/submit", json={"jobs": [job]})
        assert (foreign.status_code, foreign.json()["code"]) == (409, "id_conflict")
        assert "acme" not in foreign.text
        own = await town.clients["own"].post("/v1/work/submit", json={"jobs": [job]})
        assert own.json() == {"value": [{"id": town.things[name], "replayed": False}]}
    assert await belongings(town) == before


async def belongings(town: Town) -> list[Any]:
    return [(await town.clients["own"].get(f"/v1/jobs/{town.things[name]}")).json() for name in ("job", "finished")]


def is_told_apart(foreign: httpx2.Response, unknown: httpx2.Response, things: dict[str, str]) -> bool:
    """Whether two responses differ in more than the requested id and the time."""

    def plain(reply: httpx2.Response) -> str:
        text = reply.text
        for thing in (*things.values(), NOBODY):
            text = text.replace(thing, "ID")
        return re.sub(r'"request_id":"[^"]*"', "", re.sub(r"\b[0-9a-z]{26}\b|[0-9T:.-]{19,27}Z|\b\d{16}\b", "ID", text))

    return foreign.status_code != unknown.status_code or plain(foreign) != plain(unknown)


async def test_no_list_shows_what_belongs_to_another_tenant(town: Town) -> None:
    """The tenant parameter must not help either, because it is for operators only."""
    holes: list[tuple[object, ...]] = []
    for row in rows_of(town.served.api):
        if row.is_a_tenants and row.method == "GET" and not PARAMETER.search(row.path):
            for query in ("", "?tenant=acme", "?tenant=*", "?tenant="):
                reply = await town.ask("other", Row(row.method, row.path + query, row.scope))
                if town.things["job"] in reply.text or "acme" in reply.text.replace("tenant=acme", ""):
                    holes.append((*row, query, reply.text))
    assert holes == []
    seen = await town.clients["operator"].get("/v1/jobs", params={"tenant": "acme"})
    assert town.things["job"] in seen.text


async def test_tracebacks_are_for_operators(town: Town) -> None:
    """A traceback shows the code, the paths and the libraries of the worker, which usually belongs to the operator."""
    body = {"kind": "broken", "arguments": {"text": "https://me:hunter2abc@x.example/?api_key=hunter3abc"}}
    failed = (await town.clients["own"].post("/v1/jobs", json=body)).json()["id"]
    await town.served.settle()
    things = {**town.things, "job": failed, "finished": failed}
    holes: list[tuple[object, ...]] = []
    for row in sorted(rows_of(town.served.api), key=lambda row: "show" not in row.path and row.method != "GET"):
        for who in ("own", "own worker", "worker"):
            reply = await town.ask(who, row, things)
            if shows_traceback(reply.text):
                holes.append((who, *row, reply.text))
    assert holes == []
    shown = (await town.clients["operator"].get(f"/v1/jobs/{failed}")).json()["errors"][0]
    assert "conftest.py" in shown["traceback"]
    assert "hunter" not in shown["traceback"] + shown["message"]


def shows_traceback(text: str) -> bool:
    return "Traceback (most" in text or "conftest.py" in text


@pytest.mark.parametrize("query", ["state=failed", "error_code=ValueError", "kind=broken", "key=order-7"])
async def test_no_list_of_dead_letters_shows_a_traceback(town: Town, query: str) -> None:
    """The matrix asks for lists without filters; a filtered list may be read in another way."""
    body = {"kind": "broken", "arguments": {"text": "x"}, "key": "order-7"}
    failed = (await town.clients["own"].post("/v1/jobs", json=body)).json()["id"]
    await town.served.settle()
    shown = (await town.clients["own"].get(f"/v1/jobs?{query}")).text
    assert (failed in shown, shows_traceback(shown)) == (True, False)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_no_live_frame_shows_a_traceback(town: Town, transport: str) -> None:
    """A stream is not read by the matrix. It tells everything about a job as it happens, failures included."""
    key = {"Authorization": town.clients["own"].headers["Authorization"]}
    failed = (await town.clients["own"].post("/v1/jobs", json={"kind": "broken", "arguments": {"text": "x"}})).json()[
        "id"
    ]
    async with TRANSPORTS[transport](town.served.url, key, follow=failed) as watcher:
        await watcher.until(has(failed, "pending"))
        await town.served.settle()
        await watcher.until(has(failed, "failed"))
    assert watcher.jobs[failed]["last_error_code"] == "ValueError"
    assert not shows_traceback(json.dumps(watcher.events))


async def test_the_description_of_the_service_shows_no_traceback(town: Town) -> None:
    """Everybody may read it; an example with a real traceback would show the machine on which it was made."""
    assert not shows_traceback((await town.clients["none"].get("/v1/openapi.json")).text)


# -- a route without a scope ------------------------------------------------------------------------------------------


async def nothing() -> None: ...


def test_a_route_without_a_scope_is_not_served() -> None:
    """This must hold for plain routes, routers, nested routers, WebSockets and mounts."""
    ways = []
    for _ in range(5):
        ways.append((FastAPI(openapi_url="/v1/openapi.json"), APIRouter()))
    ways[0][0].add_api_route("/v1/hole", nothing)
    ways[1][1].add_api_route("/v1/hole", nothing)
    ways[1][0].include_router(ways[1][1])
    inner = APIRouter()
    inner.add_api_route("/v1/hole", nothing)
    ways[2][1].include_router(inner)
    ways[2][0].include_router(ways[2][1])
    ways[3][1].add_api_websocket_route("/v1/hole", nothing)
    ways[3][0].include_router(ways[3][1])
    mounted = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    mounted.add_api_route("/hole", nothing)
    ways[4][0].mount("/v1", mounted)
    for api, _ in ways:
        with pytest.raises(UsageError, match="hole declares no scope"):
            refuse_unscoped(without_docs(api))


def without_docs(api: FastAPI) -> FastAPI:
    """Disable the documentation pages that FastAPI adds, which the service does not have."""
    api.router.routes = [
        route for route in api.routes if not getattr(route, "path", "").startswith(("/docs", "/redoc"))
    ]
    return api


def test_a_route_with_a_scope_is_served() -> None:
    """A check that refuses every route would soon be disabled."""
    routes = Routes("/v1/fine", "fine")
    routes.get("", Scope.JOBS_READ)(nothing)
    routes.websocket("/live", Scope.JOBS_READ)(nothing)
    api = FastAPI(openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None)
    api.include_router(routes.router)
    refuse_unscoped(api)
    assert [required_scope(route) for route in every_route(api.routes)][1:] == ["jobs:read", "jobs:read"]


def test_a_scope_that_does_not_exist_is_a_mistake() -> None:
    """A misspelled scope must not become a scope that no caller has or every caller has."""
    with pytest.raises(ValueError, match="jobs:raed"):
        Routes("/v1/fine", "fine").get("", "jobs:raed")(nothing)


# -- a verb without a rule --------------------------------------------------------------------------------------------


def test_every_verb_says_what_a_caller_of_one_tenant_may_do() -> None:
    """A verb that is passed on to the store without a comparison serves every tenant to every worker."""
    assert [verb.path for verb in VERBS if not has_tenant_rule(verb)] == []
    assert {verb.scope for verb in FOR_OPERATORS} == {Scope.OPERATE}


def test_a_verb_without_a_rule_is_not_served() -> None:
    """The check must not depend on a test: a service with such a verb must not start."""
    for scope in Scope:
        verb = Verb("store.reads", "now", "/hole", EmptyRequest, EmptyRequest, scope)
        with pytest.raises(UsageError, match="/v1/work/hole has no rule for callers of one tenant"):
            add_route(verb)
    with pytest.raises(UsageError, match="has no rule"):
        add_route(PAUSE._replace(scope=Scope.WORK))
