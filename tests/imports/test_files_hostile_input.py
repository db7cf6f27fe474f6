"""Files of another format than their name says are refused; files with one bad line are not."""

from pathlib import Path

import pytest
from tests.imports.test_import_faults import Import, things

from leaseway.imports.domain.run_state import RunState
from leaseway.imports.run.assembly import load_import
from leaseway.imports.sources.files import PAGE_LINES


async def imported(folder: Path, content: bytes) -> tuple[RunState, int, int, str]:
    it = Import(folder, [])
    it.file.write_bytes(content)
    state = await it.worked()
    row = await it.only()
    await it.parts.sink.close()
    return state, row.rows, row.quarantined, row.why or ""


@pytest.mark.parametrize(
    "content",
    [
        b'[{"id": 1}, {"id": 2}]\n',
        b"\x1f\x8b\x08\x00 and so on\n",
        b"<html>\n",
    ],
    ids=["array", "gzip", "html"],
)
async def test_a_file_without_a_single_object_is_never_a_complete_import(tmp_path: Path, content: bytes) -> None:
    """All records in quarantine with exit code 0 would look like success, even in a small file."""
    state, rows, quarantined, why = await imported(tmp_path, content)
    assert (state, rows, quarantined) == (RunState.PARTIAL, 0, 0)
    assert "no record of a page is an object" in why


@pytest.mark.parametrize("line", ['{"id": 1', '{"name": "without a key"}'])
async def test_a_last_page_of_one_bad_record_does_not_stop_the_others(tmp_path: Path, line: str) -> None:
    """Page boundaries are accidental, and the previous page has shown that the spec is right."""
    lines = [*things(PAGE_LINES), line]
    state, rows, quarantined, _ = await imported(tmp_path, "\n".join(lines).encode())
    assert (state, rows, quarantined) == (RunState.COMPLETE, PAGE_LINES, 1)


async def test_a_long_field_of_a_csv_file_is_a_field(tmp_path: Path) -> None:
    """The outline of a country is longer than the default limit of Python's csv module."""
    it = Import(tmp_path, [])
    (tmp_path / "things.csv").write_text(f"id,outline\n1,{'x' * 200_000}\n2,y\n", "utf-8")
    it.path.write_text(it.path.read_text("utf-8").replace("things.jsonl", "things.csv"), "utf-8")
    it.parts = load_import(it.path)
    assert await it.worked() is RunState.COMPLETE
    assert it.ids() == ["1", "2"]
    await it.parts.sink.close()
