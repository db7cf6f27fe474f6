"""Imports by a spec alone from servers that others wrote: every row once after five kills of all workers."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.servers.server_process import PROGRAMS, ServerKit, free_port
from tests.servers.things import COUNT, NAMES, check_all, imported

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RECORDS = [{"id": number, "name": name} for number, name in enumerate(NAMES, 1)]

DATASETTE = """
path = "/shop/things.json"
params = { _shape = "objects" }
records = "$.rows"
key = "id"
page = { cursor = "link", limit_param = "_size", limit = 20 }
"""


async def test_datasette(tmp_path: Path, kit: ServerKit) -> None:
    """Its links are in a header, and its page size is another parameter than most."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file, file:
        file.execute("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT)")
        file.executemany("INSERT INTO things VALUES (:id, :name)", RECORDS)
    server = kit.script(tmp_path, "datasette", "serve", "shop.db", "-h", "127.0.0.1", "-p", "PORT")
    check_all(await imported(tmp_path, server, DATASETTE))


JSON_SERVER = """
path = "/things"
key = "id"
[resource.page]
cursor = "page"
param = "_page"
limit_param = "_limit"
limit = 20
total = "header:X-Total-Count"
is_stable = true
"""
JSON_SERVER_1 = """
path = "/things"
records = "$.data"
key = "id"
page = { cursor = "page", param = "_page", limit_param = "_per_page", limit = 20, pages = "$.pages", is_stable = true }
"""


@pytest.mark.parametrize(
    ("package", "program", "resource"),
    [("json-server", "lib/cli/bin.js", JSON_SERVER), ("json-server-1", "lib/bin.js", JSON_SERVER_1)],
)
async def test_json_server(tmp_path: Path, kit: ServerKit, package: str, program: str, resource: str) -> None:
    """Its two versions count in a header and in the body, and repeat the last page past the end."""
    (tmp_path / "db.json").write_text(json.dumps({"things": RECORDS}), "utf-8")
    path = kit.modules / package / program
    server = kit.node(tmp_path, path, "--host", "127.0.0.1", "--port", "PORT", "db.json")
    check_all(await imported(tmp_path, server, resource))


GRAPHQL = """
method = "POST"
records = "$.data.things.edges[*].node"
key = "number"
[resource.body]
query = '''
query($n: Int, $after: String) {
  things(first: $n, after: $after) { edges { node { number name } } pageInfo { endCursor hasNextPage } }
}'''
[resource.page]
cursor = "token"
param = "$.variables.after"
limit_param = "$.variables.n"
limit = 20
next = "$.data.things.pageInfo.endCursor"
more = "$.data.things.pageInfo.hasNextPage"
"""


async def test_graphql(tmp_path: Path, kit: ServerKit) -> None:
    """A Relay connection has its cursor and its end in an object beside the records."""
    server = kit.program(tmp_path, "graphql_things.py", "PORT", COUNT)
    check_all(await imported(tmp_path, server, GRAPHQL))


DYNAMODB = """
method = "POST"
records = "$.Items"
key = "id.S"
body = { TableName = "things" }
[resource.page]
cursor = "token"
param = "$.ExclusiveStartKey"
limit_param = "$.Limit"
limit = 20
next = "$.LastEvaluatedKey"
"""
AWS_KEY = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"
AWS_TYPE = "application/x-amz-json-1.0"
SCAN = f"""
headers = {{ X-Amz-Target = "DynamoDB_20120810.Scan", Content-Type = "{AWS_TYPE}" }}
auth = {{ header = "Authorization", env = "AWS_SIGNATURE" }}
"""


async def test_dynamodb(tmp_path: Path, kit: ServerKit) -> None:
    """Its cursor is an object in the body, and its last page has none."""
    server = kit.script(tmp_path, "moto_server", "-H", "127.0.0.1", "-p", "PORT")

    def send(verb: str, body: object) -> None:
        target = f"DynamoDB_20120810.{verb}"
        server.send("POST", "/", body, {"X-Amz-Target": target, "Content-Type": AWS_TYPE, "Authorization": AWS_KEY})

    key = {"AttributeName": "id", "KeyType": "HASH"}
    definition = {"AttributeName": "id", "AttributeType": "S"}
    table = {"TableName": "things", "KeySchema": [key], "AttributeDefinitions": [definition]}
    send("CreateTable", {**table, "BillingMode": "PAY_PER_REQUEST"})
    items = [{"id": {"S": str(each["id"])}, "name": {"S": each["name"]}} for each in RECORDS]
    for start in range(0, COUNT, 25):
        send(
            "BatchWriteItem",
            {"RequestItems": {"things": [{"PutRequest": {"Item": i}} for i in items[start : start + 25]]}},
        )
    check_all(await imported(tmp_path, server, DYNAMODB, SCAN, name="name.S", AWS_SIGNATURE=AWS_KEY))


STRIPE = """
path = "/v1/customers"
records = "$.data"
key = "id"
[resource.page]
cursor = "token"
param = "starting_after"
next = "$.data[-1].id"
more = "$.has_more"
limit_param = "limit"
limit = 20
"""


async def test_stripe(tmp_path: Path, kit: ServerKit) -> None:
    """Its cursor is the id of the last record, and it wants the key as a user name without a password."""
    server = kit.program(tmp_path, "stripe_things.py", "PORT", COUNT)
    auth = 'auth = { header = "Authorization", scheme = "Bearer", env = "STRIPE_KEY" }'
    check_all(await imported(tmp_path, server, STRIPE, auth, STRIPE_KEY="sk_test_things"))


KINTO = """
path = "/v1/buckets/shop/collections/things/records"
params = { _since = 0, _sort = "last_modified" }
records = "$.data"
key = "id"
deletes = { record = { field = "deleted" } }
page = { cursor = "link", next = "header:Next-Page", limit_param = "_limit", limit = 20 }
"""
GONE = 30
"""How many records are deleted before the import."""


async def test_kinto(tmp_path: Path, kit: ServerKit) -> None:
    """Its feed contains deleted records, which were imported as living rows."""
    server = kit.script(tmp_path, "kinto", "start", "--ini", PROGRAMS / "kinto.ini", "--port", "PORT")
    login = {"Authorization": "Basic bWU6c2VjcmV0"}
    server.send("PUT", "/v1/buckets/shop", {}, login)
    server.send("PUT", "/v1/buckets/shop/collections/things", {}, login)
    place = "/buckets/shop/collections/things/records"
    for start in range(0, COUNT, 100):
        puts = [
            {"method": "PUT", "path": f"{place}/thing-{each['id']}", "body": {"data": {"name": each["name"]}}}
            for each in RECORDS[start : start + 100]
        ]
        server.send("POST", "/v1/batch", {"requests": puts}, login)
    for number in range(1, GONE + 1):
        server.send("DELETE", f"/v1{place}/thing-{number}", headers=login)
    outcome = await imported(tmp_path, server, KINTO, 'auth = { user = "me", env = "KINTO" }', KINTO="secret")
    assert outcome.exit_code == 0, outcome.output
    assert {thing.name for thing in outcome.things if not thing.is_deleted} == set(NAMES[GONE:])
    assert sum(thing.is_deleted for thing in outcome.things) == GONE


COUCH = """
path = "/things/_changes"
params = { include_docs = true }
records = "$.results"
key = "id"
deletes = { record = { field = "deleted" } }
page = { cursor = "token", param = "since", next = "$.last_seq", limit_param = "limit", limit = 20 }
"""


async def test_couchdb(tmp_path: Path, kit: ServerKit) -> None:
    """Its feed of changes never says that it ends: at its end, the next cursor is the one that was asked for."""
    server = kit.node(tmp_path, PROGRAMS / "couch_things.js", kit.modules, "PORT")
    server.send("PUT", "/things")
    docs = [{"_id": str(each["id"]), "name": each["name"]} for each in RECORDS]
    stored = server.send("POST", "/things/_bulk_docs", {"docs": docs})
    for each in stored[:GONE]:
        server.send("DELETE", f"/things/{each['id']}?rev={each['rev']}")
    outcome = await imported(tmp_path, server, COUCH, name="doc.name")
    assert outcome.exit_code == 0, outcome.output
    assert {thing.name for thing in outcome.things if not thing.is_deleted} == set(NAMES[GONE:])
    assert sum(thing.is_deleted for thing in outcome.things) == GONE


OGC = """
path = "/collections/things/items"
params = { f = "json" }
records = "$.features"
key = "properties.id"
page = { cursor = "link", next = "$.links[?rel=='next'].href", limit_param = "limit", limit = 20 }
"""
BOXES = """
[resource.filters.box]
param = "bbox"
box = "west,south,east,north"
latitude = "properties.y"
longitude = "properties.x"
[resource.partition]
by = "box"
degrees = 45
"""


async def test_pygeoapi_with_strict_boxes(tmp_path: Path, kit: ServerKit) -> None:
    """Its provider of Parquet files excludes the edges of a box: what lies on a line of the grid was in no box."""
    points = [[each["id"], each["name"], *point_of(number)] for number, each in enumerate(RECORDS)]
    (tmp_path / "points.json").write_text(json.dumps(points), "utf-8")
    port = free_port()  # the server writes links to the address in its settings
    url = f"http://127.0.0.1:{port}"
    server = kit.program(tmp_path, "pygeoapi_things.py", tmp_path, "PORT", url, tmp_path / "points.json")
    check_all(await imported(tmp_path, server, OGC + BOXES, name="properties.name", proxy_port=port))


def point_of(number: int) -> tuple[float, float]:
    """Every second point lies on a line of the grid."""
    if number % 2:
        return number % 8 * 45.0 - 180, number % 4 * 45.0 - 90
    return number % 350 - 175.5, number % 170 - 84.5
