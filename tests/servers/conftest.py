"""Imports from servers that others wrote. `./dev servers` installs them into an environment of their own and runs these
tests; the rest of the suite does without them, because they need 800 MB and minutes.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.npm_packages import install_locked
from tests.servers.server_process import RunningServer, ServerKit
from tests.servers.things import COUNT, SECRET

ENVIRONMENT = "LEASEWAY_TEST_SERVERS"
"""The environment with the packages of the group `servers`."""
collect_ignore_glob = [] if ENVIRONMENT in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def kit() -> Iterator[ServerKit]:
    modules = install_locked(Path(__file__).parent / "node_servers", print)
    with ServerKit(Path(os.environ[ENVIRONMENT]), modules) as kit:
        yield kit


@pytest.fixture(scope="session")
def django(kit: ServerKit, tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    """Django REST framework, its JSON:API and OAuth2."""
    folder = tmp_path_factory.mktemp("django")
    return kit.program(folder, "django_things.py", folder, "PORT", COUNT, SECRET)
