"""Several resources of one source in one file: one limit, and runs of their own."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from tests.cli.place import Answer
from tests.imports.test_sources_hostile import Reply, provider
from tests.sqlite_files import open_sqlite

from leaseway.cli.main import main
from leaseway.imports.run.assembly import load_import
from leaseway.imports.spec.reader import BadSpec, list_resources, read_spec, schema

FILE = """
version = 1
[source]
name = "shop"
base_url = "URL"
limits = ["1000/second"]
[resources.orders]
params = { what = "orders" }
key = "id"
[resources.customer-groups]
params = { what = "groups" }
key = "id"
columns = { name = { path = "name", type = "text" } }
[resources.prices]
params = { what = "prices" }
key = "id"
table = "price_list"
[sink]
url = "sqlite:///FOLDER/data.db"
"""
NAMES = ["orders", "customer-groups", "prices"]


def test_each_resource_has_runs_and_a_table_of_its_own_and_they_share_a_limit() -> None:
    """With one source name they failed each other's shards; with two names each had the limit for itself."""
    text = FILE.replace("URL", "https://shop.example")
    specs = [read_spec(text, "shop.toml", name) for name in NAMES]
    assert [spec.source.name for spec in specs] == ["shop-orders", "shop-customer-groups", "shop-prices"]
    assert [spec.sink.table for spec in specs] == ["orders", "customer_groups", "price_list"]
    assert {spec.source.limit_name for spec in specs} == {"shop"}


async def test_one_command_imports_all_of_them(tmp_path: Path) -> None:
    """Otherwise a schedule needs an entry for every resource, and forgets the one that was added."""

    def answers(query: dict[str, str]) -> Reply:
        return Reply([{"id": number, "name": f"{query['what']} {number}"} for number in range(3)])

    async with provider(answers) as it:
        path = tmp_path / "shop.toml"
        path.write_text(FILE.replace("URL", it.url).replace("FOLDER", str(tmp_path)), "utf-8")
        said = await run_command("run", str(path), "--workers", "1", "--store", f"sqlite:///{tmp_path}/jobs.db")
        assert said.code == 0, said.err
    with open_sqlite(tmp_path / "data.db") as file:
        for table in ("orders", "customer_groups", "price_list"):
            assert file.execute(f"SELECT count(*) FROM {table}").fetchone() == (3,), table
        runs = file.execute("SELECT source, state FROM leaseway_runs ORDER BY 1").fetchall()
    assert runs == [(f"shop-{name}", "complete") for name in sorted(NAMES)]


async def run_command(*argv: str) -> Answer:
    """In a process of its own, so that the server of the test can answer."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "leaseway.cli", "import", *argv,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return Answer(process.returncode or 0, out.decode(), err.decode())


def test_one_of_them_is_named_with_a_mark(tmp_path: Path) -> None:
    """A schedule may import one of them more often than the others."""
    path = tmp_path / "shop.toml"
    path.write_text(FILE.replace("URL", "https://shop.example").replace("FOLDER", str(tmp_path)), "utf-8")
    assert list_resources(path) == [f"{path}#{name}" for name in NAMES]
    assert list_resources(f"{path}#orders") == [f"{path}#orders"]
    assert load_import(f"{path}#orders").spec.source.name == "shop-orders"


def test_a_run_is_not_named_for_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second run would have the name of the first one, and be refused after the first one has run for hours."""
    path = tmp_path / "shop.toml"
    path.write_text(FILE.replace("URL", "http://127.0.0.1:9").replace("FOLDER", str(tmp_path)), "utf-8")
    assert main(["import", "run", str(path), "--run", "today", "--store", f"sqlite:///{tmp_path}/jobs.db"]) == 2
    assert f"--run: names the run of one resource; name one: {path}#orders" in capsys.readouterr().err
    assert not (tmp_path / "data.db").exists()


ONE = FILE.split("[resources.customer-groups]")[0] + '[sink]\nurl = "sqlite:///data.db"\n'
MISTAKES = {
    "none is named": (FILE, None, "resources: has 3; name one: shop.toml#orders, shop.toml#customer-groups"),
    "an unknown one": (FILE, "order", "resources: has no 'order'; did you mean 'orders'?"),
    "one of none": (ONE.replace("resources.orders", "resource"), "orders", "write shop.toml without #orders"),
    "both ways": (f"{ONE}\n[resource]\nkey = 'id'\n", "orders", "move it to [resources.NAME]"),
    "no names": (ONE.replace("[resources.orders]", "[resources]"), None, "must be tables with names"),
    "a mistake inside": (ONE.replace('key = "id"', "key = 7"), "orders", "shop.toml: resources.orders.key: must be"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_place_in_the_file(mistake: str) -> None:
    """A file of twenty resources has twenty fields of every name."""
    text, chosen, expected = MISTAKES[mistake]
    with pytest.raises(BadSpec) as caught:
        read_spec(text.replace("URL", "https://shop.example"), "shop.toml", chosen)
    assert expected in str(caught.value)


def test_a_file_with_one_named_resource_needs_no_choice() -> None:
    """A file often begins with one resource, and the next one is added later."""
    assert read_spec(ONE.replace("URL", "https://shop.example"), "shop.toml").source.name == "shop-orders"


def test_editors_know_named_resources() -> None:
    """The schema is what an editor underlines with."""
    named = schema()["$defs"]["NamedResource"]["properties"]
    assert {"table", "key", "page"} <= named.keys()
    assert json.dumps(schema())
