"""Values that are valid for their type but do not fit into a database."""

from typing import Any

import msgspec
from tests.api.every_store import store_url as store_url
from tests.api.running_service import Served
from tests.attacks.extreme_values import extreme_bodies, sample_body
from tests.attacks.routes import AttackedRoute, served_routes

from leaseway.api.routing import route_descriptions
from leaseway.stores.http.protocol import VERBS

JSON = {"Content-Type": "application/json"}


async def prepare(served: Served) -> None:
    """Create what the samples refer to, all named a: otherwise requests would end with 404 before their values are
    used.
    """
    await served.client.put("/v1/limits/a", json={"rates": ["100/minute"], "concurrency": 5})
    await served.client.put("/v1/budgets/a", json={"unit": "usd", "limit": 100})
    await served.client.put("/v1/tenants/a", json={"weight": 2})


async def answers_to(served: Served, way: AttackedRoute, kind: Any) -> list[tuple[object, ...]]:
    await prepare(served)
    found: list[tuple[object, ...]] = []
    for place, body in [((), msgspec.json.encode(sample_body(kind))), *extreme_bodies(kind)]:
        answer = await served.client.request(way.method, way.to("a"), content=body, headers=JSON)
        if answer.status_code >= 500:
            found.append((way.path, place, body[:200], answer.text))
    return found


async def test_no_number_from_a_worker_breaks_the_store(served: Served) -> None:
    """Other programs implement the protocol. Numbers that do not fit into a column must be refused before the store is
    called: an error of the store would look like a server error and would abort the whole transaction.
    """
    ways = {(way.method, way.path) for way in served_routes(served.api)}
    holes: list[tuple[object, ...]] = []
    for verb in VERBS:
        way = AttackedRoute("POST", f"/v1/work{verb.path}")
        assert way in ways
        holes += await answers_to(served, way, verb.body)
    assert holes == []


async def test_no_number_from_a_client_breaks_the_store(served: Served) -> None:
    """A number that the database cannot hold must be the client's error, not a failure of the service."""
    described = served.api.openapi()["paths"]
    descriptions = route_descriptions(served.api.routes).values()
    by_name = {each.body.__name__: each.body for each in descriptions if each.body is not None}
    holes: list[tuple[object, ...]] = []
    seen = 0
    for path, methods in described.items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            kind = by_name.get(content.get("schema", {}).get("$ref", "").rpartition("/")[2])
            if kind is not None:
                seen += 1
                holes += await answers_to(served, AttackedRoute(method.upper(), path), kind)
    assert holes == []
    assert seen > 10
