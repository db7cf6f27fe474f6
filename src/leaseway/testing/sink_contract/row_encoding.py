"""Unusual values: a value that the database cannot store must not fail its page."""

from typing import Any

import pytest
from msgspec.structs import replace

from leaseway.imports.domain.page import Row, WriteCounts
from leaseway.imports.sinks.port import Sink
from leaseway.testing.sink_contract.fixtures import RUN, Witness, bad, page, row, rows, shard, started, written

TEXTS = {
    "quotes": 'O\'Brien "the" one; DROP TABLE',
    "backslashes": "a\\b\tc\nd",
    "beyond the first plane": "🚗 日本 \U0010ffff",
    "separators": "a\u2028b\u0085c\ufeff",
    "percent": "%s $1 :name ?",
    "nothing": "",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_odd_texts_come_back_as_they_were(sink: Sink, witness: Witness, text: str) -> None:
    """In ids, documents, columns, cursors and reasons."""
    await started(sink)
    odd = replace(row(f"id {text}", title=text), content_hash=f"hash {text}")
    await written(sink, page([odd], after=1, why=text, page_hash=text or "none", bad=[bad(0, text, text)]))
    ((external_id, found),) = (await witness.rows()).items()
    assert (external_id, found["title"], found["document"]["id"]) == (f"id {text}", text, f"id {text}")
    assert ((await shard(sink)).why, (await shard(sink)).recent) == (text, (text or "none",))
    ((_, _, kept),) = await sink.quarantine.find_all()
    assert kept == bad(0, text, text)


DOCUMENTS = {
    "an escaped NUL": r'{"name":"a\u0000b"}',
    "an escaped half of a pair": r'{"name":"a\ud83db"}',
    "the other half": r'{"name":"a\uDE97b"}',
    "half a pair": '{"name":"a\ud83db"}',
}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
async def test_what_is_no_character_does_not_stop_a_page(sink: Sink, witness: Witness, document: str) -> None:
    """One such record in a million would make the shard fail at the same page forever."""
    await started(sink)
    odd = replace(row(1, title="a\0b\ud83d"), document=document)
    assert await sink.shards.write(page([odd, row(2)], after=1)) == WriteCounts(inserted=2)
    found = (await witness.rows())["1"]
    assert found["title"] == "a\ufffdb\ufffd"
    assert found["document"]["name"] in ("a\ufffdb", "a\0b", "a\ud83db", "a\ude97b")


async def test_escapes_that_mean_something_are_kept(sink: Sink, witness: Witness) -> None:
    """The backslash before u0000 may itself be escaped."""
    await started(sink)
    document = r'{"a":"\\u0000","b":"\ud83d\ude97","c":"\u00e9\n","\u0000":1}'
    await written(sink, page([replace(row(1), document=document)], after=1))
    found = (await witness.rows())["1"]["document"]
    assert (found["a"], found["b"], found["c"]) == (r"\u0000", "🚗", "é\n")


KEPT: dict[str, tuple[str, Any]] = {
    "a large integer": ("size", 10**15),
    "the largest integer": ("size", 2**63 - 1),
    "the smallest integer": ("size", -(2**63)),
    "an integer": ("latitude", 7),
    "a tiny number": ("latitude", 5e-324),
    "false": ("is open", False),
    "the first instant": ("seen_at", -62_135_596_800_000_000),
    "the last instant": ("seen_at", 253_402_300_799_999_999),
    "a plain value": ('the "tags"', {"a": [1, None, "x"]}),
}


@pytest.mark.parametrize(("column", "value"), KEPT.values(), ids=KEPT)
async def test_the_largest_values_come_back_as_they_were(sink: Sink, witness: Witness, column: str, value: Any) -> None:
    """Ids of 10^15 occur in practice, and a float would round them."""
    await started(sink)
    assert await sink.shards.write(page([row(1, **{column: value})], after=1)) == WriteCounts(inserted=1)
    assert (await witness.rows())["1"][column] == value


UNFIT: dict[str, tuple[Row, str, str]] = {
    "an integer of 65 bits": (row(1, size=2**63), "out_of_range", "size: must be a 64-bit integer"),
    "a text for an integer": (row(1, size="7"), "bad_type", "size: must be an integer (is '7')"),
    "a number for a text": (row(1, title=7), "bad_type", "title: must be text (is 7)"),
    "true for a number": (row(1, latitude=True), "bad_type", "latitude: must be a number (is True)"),
    "a number without end": (row(1, latitude=10**400), "out_of_range", "latitude: is too large"),
    "one for true": (row(1, **{"is open": 1}), "bad_type", "is open: must be true or false (is 1)"),
    "the year 10000": (row(1, seen_at=253_402_300_800_000_000), "out_of_range", "seen_at: must be between the years"),
    "a stamp of 65 bits": (row(1, stamp=2**63), "out_of_range", "must be a 64-bit integer"),
    "NUL in an id": (row("a\0b"), "out_of_range", "the id contains NUL"),
    "half a pair in an id": (row("a", title="x"), "out_of_range", "the id contains NUL or a lone surrogate"),
    "an id without end": (row("é" * 1_001), "too_large", "the id is longer than 2,000 bytes"),
    "an id twice": (row(2, version=3), "duplicate_key_in_page", "another row with this id"),
}
UNFIT["half a pair in an id"] = (replace(row("a"), external_id="a\ud83d"), *UNFIT["half a pair in an id"][1:])


@pytest.mark.parametrize(("odd", "code", "problem"), UNFIT.values(), ids=UNFIT)
async def test_what_cannot_be_stored_goes_into_quarantine(
    sink: Sink, witness: Witness, odd: Row, code: str, problem: str
) -> None:
    """The other rows of the page must be written, and everything must be counted."""
    await started(sink)
    assert await sink.shards.write(page([row(2), odd, row(3)], after=1)) == WriteCounts(inserted=2, quarantined=1)
    ((_, _, kept),) = await sink.quarantine.find_all(RUN.id)
    assert (kept.position, kept.code, kept.document) == (1, code, odd.document)
    assert problem in kept.problem
    assert sorted(await witness.rows()) == ["2", "3"]
    assert (await witness.rows())["2"]["content_hash"] == "hash-0"
    assert (await shard(sink)).quarantined == 1


async def test_the_longest_id_is_kept(sink: Sink, witness: Witness) -> None:
    """Some sources use whole URLs as ids."""
    await started(sink)
    longest = "".join(f"{number:04x}" for number in range(500))
    assert await sink.shards.write(page([row(longest)], after=1)) == WriteCounts(inserted=1)
    assert list(await witness.rows()) == [longest]


async def test_a_column_that_a_record_lacks_is_empty(sink: Sink, witness: Witness) -> None:
    """And a value without a column must be ignored."""
    await started(sink)
    await written(sink, page([*rows(1), row(2, title=None, unknown=1)], after=1))
    for found in (await witness.rows()).values():
        assert (found["title"], found["size"], found['the "tags"']) == (None, None, None)
        assert "unknown" not in found
