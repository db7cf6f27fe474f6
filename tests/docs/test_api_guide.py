"""The specs in the guide by kind of API are those that run against real servers."""

import re
import tomllib
from pathlib import Path

import pytest
from tests.servers import test_django, test_servers

from leaseway.imports.spec.reader import read_spec

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "apis.md"
BLOCK = re.compile(r'```toml title="([^"]+)"\n(.*?)```', re.DOTALL)
TESTED = {
    "django-pages.toml": test_django.PAGES,
    "django-offsets.toml": test_django.OFFSETS,
    "django-cursors.toml": test_django.CURSORS,
    "json-api.toml": test_django.JSON_API,
    "oauth2.toml": test_django.GUARDED,
    "datasette.toml": test_servers.DATASETTE,
    "json-server.toml": test_servers.JSON_SERVER,
    "json-server-1.toml": test_servers.JSON_SERVER_1,
    "graphql.toml": test_servers.GRAPHQL,
    "dynamodb.toml": test_servers.DYNAMODB,
    "stripe.toml": test_servers.STRIPE,
    "kinto.toml": test_servers.KINTO,
    "couchdb.toml": test_servers.COUCH,
    "ogc-features.toml": test_servers.OGC + test_servers.BOXES,
}
SHOWN = dict(BLOCK.findall(GUIDE.read_text("utf-8")))


def test_every_spec_of_the_guide_is_tested() -> None:
    """A spec that nobody runs is wrong sooner or later."""
    assert SHOWN.keys() == TESTED.keys()


@pytest.mark.parametrize("title", TESTED)
def test_a_spec_of_the_guide_is_the_one_that_runs(title: str) -> None:
    """A reader copies it, and an import by a slightly different spec may lose rows."""
    assert tomllib.loads(SHOWN[title])["resource"] == tomllib.loads(f"[resource]\n{TESTED[title]}")["resource"]
    assert read_spec(SHOWN[title], title).resource.key
