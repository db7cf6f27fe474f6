"""Values that fit the type and nothing else: numbers that no database holds."""

from typing import Any

import msgspec
from tests.api.serving import Served
from tests.attacks.edges import edges_of, sample_of
from tests.attacks.routes import Way, ways_of

from leaseway.api.routing import DESCRIPTIONS
from leaseway.stores.http.protocol import VERBS

JSON = {"Content-Type": "application/json"}


async def prepare(served: Served) -> None:
    """What the samples name, which are all named a: who asks for what is not there is answered too soon."""
    await served.client.put("/v1/limits/a", json={"rates": ["100/minute"], "concurrency": 5})
    await served.client.put("/v1/budgets/a", json={"unit": "usd", "limit": 100})
    await served.client.put("/v1/tenants/a", json={"weight": 2})


async def answers_to(served: Served, way: Way, kind: Any) -> list[tuple[object, ...]]:
    await prepare(served)
    found: list[tuple[object, ...]] = []
    for place, body in [((), msgspec.json.encode(sample_of(kind))), *edges_of(kind)]:
        answer = await served.client.request(way.method, way.to("a"), content=body, headers=JSON)
        if answer.status_code >= 500:
            found.append((way.path, place, body[:200], answer.text))
    return found


async def test_nothing_that_a_worker_says_breaks_the_store(served: Served) -> None:
    """Out there somebody writes a client of his own. What no column holds must be found before the store is asked: its
    refusal would look like a failure of ours, and would take along what stood in the same transaction."""
    ways = {(way.method, way.path) for way in ways_of(served.api)}
    holes: list[tuple[object, ...]] = []
    for verb in VERBS:
        way = Way("POST", f"/v1/work{verb.path}")
        assert way in ways
        holes += await answers_to(served, way, verb.body)
    assert holes == []


async def test_nothing_that_a_client_says_breaks_the_store(served: Served) -> None:
    """A number that the database cannot hold must be the client's error, not a failure of the service."""
    described = served.api.openapi()["paths"]
    by_name = {each.body.__name__: each.body for each in DESCRIPTIONS.values() if each.body is not None}
    holes: list[tuple[object, ...]] = []
    seen = 0
    for path, methods in described.items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            kind = by_name.get(content.get("schema", {}).get("$ref", "").rpartition("/")[2])
            if kind is not None:
                seen += 1
                holes += await answers_to(served, Way(method.upper(), path), kind)
    assert holes == []
    assert seen > 10
