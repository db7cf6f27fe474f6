"""Files as sources: every record once, whatever the page size, and a position from which a run can resume."""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.domain.errors import TerminalError, UsageError
from leaseway.imports.domain.page import Page
from leaseway.imports.domain.partition import Cursor, make_shard
from leaseway.imports.rows import RowBuilder
from leaseway.imports.sources.files import FileSource
from leaseway.imports.spec.reader import Spec, read_spec

SHARD = make_shard("things", "all", {})


class Nobody:
    async def request(self, method: str, url: str, **options: Any) -> Any:
        raise AssertionError("a file asks nobody")


def spec_of(file: str) -> Spec:
    text = f"""
        version = 1
        source = {{ name = "things", file = "{file}" }}
        resource = {{ key = "id" }}
        sink = {{ url = "sqlite:///data.db", table = "things" }}
    """
    return read_spec(text, "import.toml")


def source(path: Path, content: str | bytes) -> FileSource:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return FileSource(spec_of(path.name), path.parent)


async def pages_of(source: FileSource, limit: int, cursor: Cursor | None = None) -> list[Page]:
    pages = []
    for _ in range(1_000):
        # As text, like a sink stores it.
        page = await source.fetch(SHARD, json.loads(json.dumps(cursor)), limit, Nobody())
        pages.append(page)
        if page.is_end:
            return pages
        cursor = page.next
    raise AssertionError("it never ends")


async def records_of(source: FileSource, limit: int) -> list[Any]:
    return [record for page in await pages_of(source, limit) for record in page.records]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_json_lines_in_pages_of_any_size(tmp_path: Path, limit: int) -> None:
    """A byte position that is off by one would lose or repeat a record at every page boundary."""
    things = [{"id": number, "text": "zwölf\n" * number} for number in range(3)]
    it = source(tmp_path / "t.jsonl", "".join(f"{json.dumps(thing)}\n" for thing in things))
    assert await records_of(it, limit) == things


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_csv_in_pages_of_any_size(tmp_path: Path, limit: int) -> None:
    """A field may contain a line break, so a page must not start in the middle of a record."""
    it = source(tmp_path / "t.csv", '\ufeffid,"na\nme"\r\n1,"one\r\nand, more"\r\n\r\n2,""\r\n3,"a ""b"""')
    assert await records_of(it, limit) == [
        {"id": "1", "na\nme": "one\r\nand, more"},
        {"id": "2", "na\nme": ""},
        {"id": "3", "na\nme": 'a "b"'},
    ]


FIELD = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(FIELD, FIELD), max_size=6), limit=st.integers(1, 4))
async def test_any_csv_in_pages_is_the_csv_at_once(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], limit: int
) -> None:
    """Quoted fields may contain line breaks, so a page boundary must not be placed by counting lines."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["id", "b"], *rows])
    it = source(tmp_path_factory.mktemp("csv") / "t.csv", text.getvalue())
    assert await records_of(it, limit) == [{"id": left, "b": right} for left, right in rows]


async def test_the_end_is_known_without_another_page(tmp_path: Path) -> None:
    """An extra empty page would cost a round trip per shard."""
    it = source(tmp_path / "t.jsonl", '{"id":1}\n{"id":2}\n\n  \n')
    (page,) = await pages_of(it, 2)
    assert (page.is_end, page.next, page.raw_count, page.size_bytes) == (True, None, 2, 18)


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv"])
async def test_an_empty_file_has_an_end(tmp_path: Path, name: str) -> None:
    """A shard without an end would be read for ever."""
    (page,) = await pages_of(source(tmp_path / name, ""), 10)
    assert (page.records, page.is_end) == ([], True)


async def test_a_line_that_cannot_be_read_becomes_a_bad_row(tmp_path: Path) -> None:
    """One broken line in a million must neither stop the import nor disappear."""
    it = source(tmp_path / "t.jsonl", b'{"id":1}\n{"id":2,\nnull\n\xff\xfe\n{"id":"\\ud800"}\n{"id":3}\n')
    records = await records_of(it, 2)
    rows, bad = RowBuilder(spec_of("t.jsonl").resource).build(records)
    assert [row.external_id for row in rows] == ["1", "3"]
    assert [row.code for row in bad] == ["bad_type"] * 4
    assert json.loads(bad[0].document) == '{"id":2,'


async def test_a_csv_line_with_too_many_fields_becomes_a_bad_row(tmp_path: Path) -> None:
    """One damaged line must not stop the import of a large file."""
    it = source(tmp_path / "t.csv", b"id,b\n1,2\n3,4,5\n6\n\xff,7\n8,9\n")
    rows, bad = RowBuilder(spec_of("t.csv").resource).build(await records_of(it, 2))
    assert [row.external_id for row in rows] == ["1", "8"]
    assert [row.code for row in bad] == ["bad_type"] * 3


async def test_an_open_quote_stops_the_import(tmp_path: Path) -> None:
    """An open quote would turn the rest of the file into one field."""
    it = source(tmp_path / "t.csv", 'id,b\n1,"open\n2,x\n')
    with pytest.raises(TerminalError, match=r"line 3: .*an earlier line may have an unclosed quote"):
        await records_of(it, 10)


async def test_two_columns_of_one_name(tmp_path: Path) -> None:
    """One of the two columns would silently overwrite the other."""
    it = source(tmp_path / "t.csv", "id,b,b\n1,2,3\n")
    with pytest.raises(UsageError, match="two columns have the name 'b'; column names must be unique"):
        await records_of(it, 10)


async def test_a_file_that_has_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    """The position belongs to another file: rows would be skipped, or read from their middle."""
    path = tmp_path / "t.jsonl"
    it = source(path, '{"id":1}\n{"id":2}\n')
    page = await it.fetch(SHARD, None, 1, Nobody())
    path.write_text('{"id":10}\n{"id":2}\n')
    os.utime(path, ns=(1, 1))
    with pytest.raises(TerminalError, match="has changed since the run started; start a new run"):
        await it.fetch(SHARD, page.next, 1, Nobody())


@pytest.mark.parametrize(("name", "problem"), [("missing.jsonl", "No such file"), ("folder.csv", "is not a file")])
async def test_no_such_file(tmp_path: Path, name: str, problem: str) -> None:
    """A missing file must name the field of the spec, not end in a traceback."""
    (tmp_path / "folder.csv").mkdir()
    it = FileSource(spec_of(name), tmp_path)
    with pytest.raises(UsageError, match=rf"^source\.file: .*{problem}"):
        await it.probe(Nobody())
    with pytest.raises(UsageError, match=rf"^source\.file: .*{problem}"):
        await it.fetch(SHARD, None, 1, Nobody())
