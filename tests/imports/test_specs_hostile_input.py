"""Specs with absurd values, or with values that would fail silently: refused, with the field and the correction."""

from pathlib import Path

import pytest

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.partition import id_range_shards
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.plan import build_plan
from leaseway.imports.sources.port import SourceProbe
from leaseway.imports.spec.reader import BadSpec, read_spec

SPEC = """
version = 1
[source]
name = "evil"
{source}
[resource]
key = "id"
{resource}
[sink]
url = "sqlite:///data.db"
table = "{table}"
"""
HTTP = 'base_url = "http://127.0.0.1:9"'
KEYSET = 'path = "/x"\npage = { cursor = "keyset", param = "after", start = 0, limit = 10 }\n'
FILE = 'file = "things.jsonl"'


def spec(source: str = FILE, resource: str = "", table: str = "things") -> str:
    return SPEC.format(source=source, resource=resource, table=table)


def problem(text: str) -> str:
    with pytest.raises(BadSpec) as found:
        read_spec(text, "evil.toml")
    return str(found.value)


def test_a_schema_is_refused_where_there_are_none() -> None:
    """The table would get a dot in its name, and could not be found under the name in the spec."""
    assert problem(spec(table="main.things")) == (
        "evil.toml: sink.table: SQLite has no schemas; write 'things' (is 'main.things')"
    )


def test_bad_records_of_a_file_that_is_swept_are_not_skipped() -> None:
    """Skipped records leave no trace, so their rows would be taken for deleted."""
    swept = "deletes = { sweep = {} }\non_bad_row = { policy = 'POLICY' }"
    assert "resource.on_bad_row.policy" in problem(spec(resource=swept.replace("POLICY", "skip")))
    read_spec(spec(resource=swept.replace("POLICY", "quarantine")), "evil.toml")


@pytest.mark.parametrize("upper", [10**12, 10**18, 10**30])
def test_a_range_for_each_of_countless_ids_is_refused_before_it_is_made(upper: int) -> None:
    """A source may report any number of ids."""
    with pytest.raises(BadValue, match="100,000 are the maximum"):
        id_range_shards("evil", 0, upper, 1)


@pytest.mark.parametrize("is_said", [True, False])
def test_a_largest_id_that_no_table_holds_is_refused(tmp_path: Path, is_said: bool) -> None:
    """From the spec or from the source, the value would only fail as a database error when the run is stored."""
    upper = '"/x#$.max"' if not is_said else str(10**30)
    partition = f'partition = {{ by = "id_range", size = {10**12}, upper = {upper} }}'
    path = tmp_path / "evil.toml"
    path.write_text(spec(HTTP, KEYSET + partition), "utf-8")
    parts = load_import(path)
    with pytest.raises(BadValue, match="64-bit"):
        build_plan(parts.spec, parts.source.caps, SourceProbe(id_max=10**30), None, 10)
