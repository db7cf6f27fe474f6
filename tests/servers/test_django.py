"""Django REST framework with each of its paginations, its JSON:API, and OAuth2: every row once after five kills."""

import json
from pathlib import Path

import pytest
from tests.servers.server_process import RunningServer
from tests.servers.things import SECRET, check_all, imported

from leaseway.aes_gcm import AesGcm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGES = """
path = "/pages/"
records = "$.results"
key = "id"
page = { cursor = "page", limit_param = "page_size", limit = 20, is_stable = true }
"""
PAGES_OF_ONE_SIZE = """
path = "/pages/"
records = "$.results"
key = "id"
page = { cursor = "page", limit = 20, is_stable = true }
"""
OFFSETS = """
path = "/offsets/"
records = "$.results"
key = "id"
page = { cursor = "offset", limit_param = "limit", limit = 20, total = "$.count" }
"""
CURSORS = """
path = "/cursors/"
records = "$.results"
key = "id"
page = { cursor = "link", next = "$.next", limit = 20 }
"""
JSON_API = """
path = "/json-api/"
records = "$.data"
key = "id"
page = { cursor = "link", next = "$.links.next", limit_param = "page[size]", limit = 20 }
"""
GUARDED = """
path = "/guarded/"
records = "$.results"
key = "id"
page = { cursor = "link", next = "$.next", limit = 20 }
"""
CLIENT = 'auth = { token_url = "URL/o/token/", client_id = "importer", scope = "things", env = "CLIENT_SECRET" }'


@pytest.mark.parametrize(
    "resource", [PAGES, PAGES_OF_ONE_SIZE, OFFSETS, CURSORS], ids=["pages", "one-size", "offsets", "cursors"]
)
async def test_each_pagination_of_the_framework(tmp_path: Path, django: RunningServer, resource: str) -> None:
    """Past the last page it answers 404, and the rows of that page were lost with the reply."""
    check_all(await imported(tmp_path, django, resource))


async def test_a_json_api(tmp_path: Path, django: RunningServer) -> None:
    """Its parameters have brackets in their names, and its links escape them."""
    check_all(await imported(tmp_path, django, JSON_API, name="attributes.name"))


async def test_a_token_of_three_seconds(tmp_path: Path, django: RunningServer) -> None:
    """The token expires several times during the import, and every new worker needs another one."""
    outcome = await imported(tmp_path, django, GUARDED, CLIENT, CLIENT_SECRET=SECRET)
    check_all(outcome)
    assert SECRET not in outcome.output


ROTATING = """
[source.auth]
token_url = "URL/o/token/"
client_id = "rotating"
env = "CLIENT_SECRET"
refresh_file = "FOLDER/token.json"
"""


async def test_a_refresh_token_that_works_once(tmp_path: Path, django: RunningServer) -> None:
    """Each refresh replaces the token for all workers. One that refreshed with the old token would end the import, and
    the next one could not begin.
    """
    file = tmp_path / "token.json"
    file.write_text('{"refresh_token": "first-refresh"}', "utf-8")
    outcome = await imported(tmp_path, django, GUARDED, ROTATING.replace("FOLDER", str(tmp_path)), CLIENT_SECRET=SECRET)
    check_all(outcome)
    kept = json.loads(file.read_text("utf-8"))
    assert kept["refresh_token"] != "first-refresh"
    assert file.stat().st_mode & 0o077 == 0
    assert kept["refresh_token"] not in outcome.output


LEASED = """
[source.auth]
token_url = "URL/o/token/"
client_id = "rotating"
env = "CLIENT_SECRET"
refresh_env = "REFRESH_TOKEN"
"""


async def test_a_refresh_token_that_is_leased_in_the_job_store(tmp_path: Path, django: RunningServer) -> None:
    """The tokens live for seconds, so workers that are killed often die around a refresh."""
    outcome = await imported(
        tmp_path, django, GUARDED, LEASED, CLIENT_SECRET=SECRET, REFRESH_TOKEN="second-refresh",
        LEASEWAY_ENCRYPTION_KEYS=f"k={AesGcm.new_key()}",
    )  # fmt: skip
    check_all(outcome)
    assert "second-refresh" not in outcome.output
    assert b"second-refresh" not in (tmp_path / "jobs.db").read_bytes()
