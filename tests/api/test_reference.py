"""The description of the API is complete, and the page that is made from it is up to date."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.api.reference import MARK, PAGE, described, page_of
from tests.api.serving import Served

import leaseway.api
from leaseway import App
from leaseway.api.app import web_of
from leaseway.api.openapi_routes import ANSWERS, Many, One
from leaseway.api.routes.metrics import about_ends, about_jobs
from leaseway.api.settings import ServiceSettings
from leaseway.api.system_snapshot import Picture

CODE = re.compile(r'Problem\(\s*\d{3},\s*"([a-z_]+)"')


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return described()


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_page_is_what_the_service_says(document: dict[str, Any]) -> None:
    """A page that is not made again tells of routes that are gone. `python -m tests.api.reference` makes it again."""
    assert PAGE.read_text("utf-8").partition(MARK)[2] == page_of(document)


def test_every_route_describes_itself(document: dict[str, Any]) -> None:
    """Who writes a client must not have to try: summary, who may, answers with schemas, problems."""
    assert document["openapi"].startswith("3.1")
    for route, operation in operations(document):
        assert operation["summary"], route
        assert ("x-scope" in operation, "security" in operation) == (True, True), route
        assert (operation["security"] == []) == (operation["x-scope"] == "open"), route
        good = [response for status, response in operation["responses"].items() if status[0] == "2"]
        assert all("content" in response or "204" in operation["responses"] for response in good), route
        for response in good:
            assert all(content["schema"] for content in response.get("content", {}).values()), (
                f"{route} answers something of which nobody says what it is: name it in leaseway/api/described.py"
            )
        assert {"500", "503"} <= set(operation["responses"]), route


def test_nothing_is_described_that_is_not_there(document: dict[str, Any]) -> None:
    """Of a route that was renamed, the old description would stay."""
    assert set(ANSWERS) - {route for route, _ in operations(document)} == set()


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    """Generators of clients make functions of them."""
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(names)) == len(names)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for found in re.findall(r'"\$ref":"#/components/([^"]+)"', msgspec.json.encode(document).decode()):
        kind, _, name = found.partition("/")
        assert name in document["components"][kind]


def test_every_code_of_a_problem_is_on_the_page() -> None:
    """Programs compare codes, and their authors look here for what to do."""
    page = PAGE.read_text("utf-8")
    sources = [path.read_text("utf-8") for path in Path(leaseway.api.__path__[0]).rglob("*.py")]
    codes = {code for source in sources for code in CODE.findall(source)}
    assert {code for code in codes if f"`{code}`" not in page} == set()


def test_every_series_is_on_the_page() -> None:
    page = PAGE.read_text("utf-8")
    picture = Picture(0, [], {}, [], [], 0, [], {}, {}, [], [])
    api = web_of(App("memory://"), ServiceSettings(auth=False))
    service = api.state.service
    families = [
        *about_jobs(picture), *about_ends(picture, {}), *api.state.requests.families(), *service.tally.families(),
        *service.live.families(),
    ]  # fmt: skip
    assert [family.name for family in families if f"`{family.name}`" not in page] == []


async def test_answers_have_the_shapes_that_are_described(served: Served) -> None:
    """A schema that does not fit is worse than none. Each shape refuses fields that it does not know."""
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
    known = {"name": {"limits": "maps", "budgets": "spend", "tenants": "acme"}, "id": {"jobs": ids[0]}}
    for route, answer in ANSWERS.items():
        method, _, path = route.partition(" ")
        of = path.split("/")[2] if path.startswith("/v1/") else ""
        name, id_ = known["name"].get(of), known["id"].get(of)
        if method != "GET" or ("{name}" in path and name is None) or ("{id}" in path and id_ is None):
            continue
        if "{source}" in path:  # an import needs specs of its own: test_imports looks at these answers
            continue
        reply = await client.get(path.replace("{name}", name or "").replace("{id}", id_ or ""))
        assert reply.status_code == 200, route
        conforms(answer, reply.json() if isinstance(answer, One | Many) else None)
    for path in (f"/v1/jobs/{ids[1]}", f"/v1/jobs/{waiting}/why"):
        conforms(
            ANSWERS[f"GET {path.replace(ids[1], '{id}').replace(waiting, '{id}')}"], (await client.get(path)).json()
        )
    for path, body in (("lanes/pause", {"queue": "q"}), ("limits/maps/pause", None), ("budgets/spend/pause", None)):
        answer = ANSWERS[f"POST /v1/{path}".replace("/maps", "/{name}").replace("/spend", "/{name}")]
        conforms(answer, (await client.post(f"/v1/{path}", json=body)).json())
    problem = await client.get("/v1/limits/nothing")
    assert problem.json()["request_id"] == problem.headers["x-request-id"]


def conforms(answer: object, body: Any) -> None:
    if isinstance(answer, Many):
        assert set(body) == {"items", "next"}
        msgspec.convert(body["items"], type=list[answer.shape])  # type: ignore[name-defined]
    elif isinstance(answer, One):
        msgspec.convert(body, type=answer.shape)
