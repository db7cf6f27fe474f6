"""The records of all servers, and an import of them that is killed five times."""

from pathlib import Path

from tests.servers.gated_proxy import gated_proxy
from tests.servers.killed_import import Imported, StoredThing, import_with_kills
from tests.servers.server_process import RunningServer

COUNT = 700
SECRET = "only-for-tests"
NAMES = [f"thing {number}" for number in range(1, COUNT + 1)]

SPEC = """
version = 1
[source]
name = "things"
base_url = "URL"
{source}
[resource]
{resource}
[resource.columns]
name = {{ path = "{name}", type = "text" }}
[sink]
url = "sqlite:///data.db"
table = "things"
"""


async def imported(
    folder: Path,
    server: RunningServer,
    resource: str,
    source: str = "",
    name: str = "name",
    proxy_port: int = 0,
    **environ: str,
) -> Imported:
    """`name`: the path of the name in a record. In `source`, URL becomes the address of the proxy."""
    async with gated_proxy(server.url, proxy_port) as proxy:
        spec = SPEC.format(source=source, resource=resource, name=name)
        return await import_with_kills(folder, spec, proxy, environ)


def check_all(outcome: Imported, names: list[str] = NAMES) -> None:
    """Every row once, and written once."""
    assert outcome.exit_code == 0, outcome.output
    expected = sorted(StoredThing(name, False, True) for name in names)
    assert sorted(outcome.things) == expected, outcome.output
