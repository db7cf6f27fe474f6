"""The OpenAPI document is complete, and the page that is generated from it is up to date."""

import re
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.api.reference import MARK, PAGE, openapi_document, page_of
from tests.api.running_service import Served, run_service

import leaseway.api
from leaseway import App
from leaseway.api.app import build_app
from leaseway.api.routes.metrics import job_families, outcome_families, pool_families
from leaseway.api.routing import RouteDescription, route_descriptions
from leaseway.api.settings import ServiceSettings
from leaseway.api.system_snapshot import LaneReadings, SystemSnapshot, summarize

CODE = re.compile(r'Problem\(\s*\d{3},\s*"([a-z_]+)"')


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document()


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_page_is_what_the_service_says(document: dict[str, Any]) -> None:
    """A stale page documents routes that no longer exist. `python -m tests.api.reference` regenerates it."""
    assert PAGE.read_text("utf-8").partition(MARK)[2] == page_of(document)


async def test_the_document_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no credential, and encoding it took 14 ms in which no other request was answered."""
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        first = await served.client.get("/v1/openapi.json")
        monkeypatch.setattr(served.api, "openapi", lambda: pytest.fail("it was built again"))
        again = await served.client.get("/v1/openapi.json", headers={"Accept-Encoding": "identity"})
        known = await served.client.get("/v1/openapi.json", headers={"If-None-Match": first.headers["etag"]})
    assert first.headers["content-type"] == "application/json"
    assert first.json() == again.json() == openapi_document()
    assert (first.headers["content-encoding"], known.status_code, known.content) == ("gzip", 304, b"")


def test_every_route_describes_itself(document: dict[str, Any]) -> None:
    """The author of a client needs each route's summary, scope, responses with schemas, and errors."""
    assert document["openapi"].startswith("3.1")
    for route, operation in operations(document):
        assert operation["summary"], route
        assert ("x-scope" in operation, "security" in operation) == (True, True), route
        assert (operation["security"] == []) == (operation["x-scope"] == "open"), route
        good = [response for status, response in operation["responses"].items() if status[0] == "2"]
        assert all("content" in response or "204" in operation["responses"] for response in good), route
        for response in good:
            assert all(content["schema"] for content in response.get("content", {}).values()), (
                f"{route} has a response without a schema: annotate the return type of its endpoint"
            )
        assert {"500", "503"} <= set(operation["responses"]), route


def test_every_described_route_is_served(document: dict[str, Any]) -> None:
    """The schema of a response is looked up by method and path; a key that matches no route would be lost silently."""
    hidden = {"GET /", "GET /assets/{version}/{name}"}
    descriptions = route_descriptions(build_app(App("memory://"), ServiceSettings(auth=False)).routes)
    assert set(descriptions) - {route for route, _ in operations(document)} == hidden


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    """Client generators derive function names from them."""
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(names)) == len(names)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    """A dangling $ref makes client generators fail."""
    for found in re.findall(r'"\$ref":"#/components/([^"]+)"', msgspec.json.encode(document).decode()):
        kind, _, name = found.partition("/")
        assert name in document["components"][kind]


def test_every_code_of_a_problem_is_on_the_page() -> None:
    """Programs compare the codes, and their authors look up here what each one means."""
    page = PAGE.read_text("utf-8")
    sources = [path.read_text("utf-8") for path in Path(leaseway.api.__path__[0]).rglob("*.py")]
    codes = {code for source in sources for code in CODE.findall(source)}
    assert {code for code in codes if f"`{code}`" not in page} == set()


def test_every_series_is_on_the_page() -> None:
    """Operators look up here what a metric means before they alert on it."""
    page = PAGE.read_text("utf-8")
    snapshot = SystemSnapshot(0, summarize(LaneReadings([], {})), 0, [], {}, {}, [], [])
    api = build_app(App("memory://"), ServiceSettings(auth=False))
    service = api.state.service
    families = [
        *job_families(snapshot), *outcome_families(snapshot, {}), *pool_families({}), *api.state.requests.families(),
        *service.work_counters.families(), *service.quotas.families(), *service.live.families(),
    ]  # fmt: skip
    assert [family.name for family in families if f"`{family.name}`" not in page] == []


async def test_responses_match_their_schemas(served: Served) -> None:
    """A wrong schema misleads the author of a client. Every struct refuses unknown fields."""
    client = served.client
    await client.put("/v1/limits/maps", json={"rates": ["100/minute"], "concurrency": 2})
    await client.put("/v1/limits/maps:%7Btenant%7D", json={"rates": ["100/minute"]})
    await client.put("/v1/budgets/spend", json={"unit": "usd", "limit": 25, "every": "day"})
    await client.put("/v1/tenants/acme", json={"weight": 2})
    ids = [(await client.post("/v1/jobs", json=body)).json()["id"] for body in (
        {"kind": "add", "arguments": {"a": 1}}, {"kind": "broken", "arguments": {"text": "x"}},
    )]  # fmt: skip
    await served.settle()
    waiting = (await client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})).json()["id"]
    names = {"limits": "maps", "budgets": "spend", "tenants": "acme", "scale": "default"}
    known_ids = {"jobs": ids[0]}
    descriptions = route_descriptions(served.api.routes)
    for route, described in descriptions.items():
        method, _, path = route.partition(" ")
        of = path.split("/")[2] if path.startswith("/v1/") else ""
        name, id_ = names.get(of), known_ids.get(of)
        if method != "GET" or ("{name}" in path and name is None) or ("{id}" in path and id_ is None):
            continue
        if "{source}" in path:  # an import needs specs of its own: test_imports checks these responses
            continue
        if path.endswith("/blob"):  # the text of a job is no struct: tests/blobs checks it
            continue
        response = await client.get(path.replace("{name}", name or "").replace("{id}", id_ or ""))
        assert response.status_code == 200, route
        check_schema(described, response)
    for path in (f"/v1/jobs/{ids[1]}", f"/v1/jobs/{waiting}/why"):
        route = f"GET {path.replace(ids[1], '{id}').replace(waiting, '{id}')}"
        check_schema(descriptions[route], await client.get(path))
    for path, body in (("lanes/pause", {"queue": "q"}), ("limits/maps/pause", None), ("budgets/spend/pause", None)):
        route = f"POST /v1/{path}".replace("/maps", "/{name}").replace("/spend", "/{name}")
        check_schema(descriptions[route], await client.post(f"/v1/{path}", json=body))
    problem = await client.get("/v1/limits/nothing")
    assert problem.json()["request_id"] == problem.headers["x-request-id"]


def check_schema(described: RouteDescription, response: httpx2.Response) -> None:
    if described.returns is None:
        return
    body = response.json()
    if described.is_page:
        assert set(body) == {"items", "next"}
    for each in body["items"] if described.is_page else [body]:
        msgspec.convert(each, type=described.returns)
