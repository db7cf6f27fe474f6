"""Encoding a page column by column gives the same result as encoding it row by row."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from leaseway.imports.domain.page import ColumnType, Row
from leaseway.imports.sinks.row_encoding import PageEncoder, RowEncoder, jsonb_text
from leaseway.testing.sink_contract.fixtures import COLUMNS, row

characters = st.characters(exclude_categories=()) | st.sampled_from("a\0\ud83d\\")  # includes lone surrogates
texts = st.text(characters, max_size=6)
integers = st.integers() | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1])
VALUES: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType.TEXT: texts,
    ColumnType.INTEGER: integers,
    ColumnType.REAL: st.floats(allow_nan=False) | st.integers() | st.just(10**400),
    ColumnType.BOOLEAN: st.booleans(),
    ColumnType.TIMESTAMP: st.integers(-62_135_596_800_000_001, 253_402_300_800_000_000),
    ColumnType.JSON: st.lists(st.integers(0, 3)) | st.just('{"a":"\\\\u0000"}'),
}
odd = st.sampled_from([None, True, 7, "text", 1.5, [1]])


def value_of(kind: ColumnType) -> st.SearchStrategy[Any]:
    """Mostly valid values, because pages in which everything fits take the fast path."""
    return st.one_of([VALUES[kind]] * 8 + [st.none(), odd])


rows = st.builds(
    lambda key, stamp, document, is_deleted, values: replace(
        row(1, stamp=stamp, **values), external_id=key, document=document, is_deleted=is_deleted
    ),
    st.text("abcdefgé", max_size=4) | texts | st.just("é" * 1_001) | st.just("x" * 1_999),
    st.integers(0, 10**15) | integers | odd,
    st.sampled_from(["{}", '{"a":"é"}', '{"a":"\\\\u0000"}', '{"a":"\ud83d"}']),
    st.booleans(),
    st.fixed_dictionaries({}, optional={name: value_of(kind) for name, kind in COLUMNS.items()}),
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(rows, max_size=4))
@pytest.mark.parametrize("document", [str, jsonb_text])
def test_both_ways_lead_to_the_same_lines(document: Any, some: list[Row]) -> None:
    """The slow path alone decides about odd values; the fast path must never accept what the slow path refuses."""
    slow, fast = RowEncoder(COLUMNS, document), PageEncoder(COLUMNS, document)
    expected, found = slow.lines(some), fast.lines(some)
    assert found == expected
    assert [list(map(type, line)) for line in found[0]] == [list(map(type, line)) for line in expected[0]]


ODD: dict[str, Row] = {
    "no stamp": replace(row(1), stamp=None),
    "true as a stamp": row(1, stamp=True),
    "a stamp of 65 bits": row(1, stamp=2**63),
    "an id twice": row(0),
    "NUL in an id": row("a\0b"),
    "half a pair in an id": replace(row(1), external_id="a\ud83d"),
    "an id without end": row("é" * 1_001),
    "a number for a text": row(1, title=7),
    "a text for a number": row(1, latitude="7"),
    "true for a number": row(1, latitude=True),
    "a number without end": row(1, latitude=10**400),
    "an integer of 65 bits": row(1, size=-(2**63) - 1),
    "one for true": row(1, **{"is open": 1}),
    "the year 10000": row(1, seen_at=253_402_300_800_000_000),
}


@pytest.mark.parametrize("odd_one", ODD.values(), ids=ODD)
def test_one_odd_row_among_plain_ones_is_found(odd_one: Row) -> None:
    """One odd row in a million must not be written."""
    lines, bad = PageEncoder(COLUMNS, str).lines([row(0), odd_one, row(2)])
    assert [line[0] for line in lines] == ["0", "2"]
    assert [(each.position, each.document) for each in bad] == [(1, odd_one.document)]


@pytest.mark.parametrize("text", ["a\0b", "a\ud83d"])
def test_one_text_that_no_database_keeps_is_mended(text: str) -> None:
    """The fast path must replace the same characters as the slow path."""
    some = [row(0, title="x"), replace(row(1, title=text), document=f'{{"a":"{text}"}}'), row(2)]
    lines, bad = PageEncoder(COLUMNS, str).lines(some)
    assert (lines, bad) == RowEncoder(COLUMNS, str).lines(some)
    assert "\ufffd" in lines[1][5]


def test_a_plain_page_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise encoding would cost more than twice as much without any visible sign."""
    monkeypatch.setattr(RowEncoder, "line", None)
    plain = [
        row(number, title="Größe", size=number, latitude=number / 2 if number % 2 else number, seen_at=number)
        for number in range(3)
    ]
    lines, bad = PageEncoder(COLUMNS, str).lines([*plain, row(4), replace(row(5), document='{"a":"é"}')])
    assert (len(lines), bad) == (5, [])
