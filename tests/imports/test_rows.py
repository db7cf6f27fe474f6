"""Records become rows; records that cannot are quarantined under a code and never stop the others."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.imports.domain.page import BadRow, Row
from leaseway.imports.domain.timestamps import parse_stamp
from leaseway.imports.rows import RowBuilder
from leaseway.imports.spec.model import Resource
from leaseway.imports.spec.reader import read_spec

OCM = read_spec((Path(__file__).parents[2] / "examples/imports/ocm_by_hand.toml").read_text(), "ocm.toml").resource
APRIL = 1_775_001_600_000_000
"""2026-04-01T00:00Z"""


def poi(number: Any = 7, **fields: Any) -> dict[str, Any]:
    address = {"Title": "Plaza Mayor", "CountryID": 210, "Latitude": 40.4, "Longitude": -3.7}
    return {"ID": number, "AddressInfo": address, "DateLastStatusUpdate": "2026-04-01T00:00:00Z", **fields}


def resource(**fields: Any) -> Resource:
    return msgspec.convert({"key": "id", **fields}, Resource)


def one(spec: Resource, record: Any, server_time: int | None = None) -> Row | BadRow:
    rows, bad = RowBuilder(spec).build([record], server_time)
    assert len(rows) + len(bad) == 1
    return rows[0] if rows else bad[0]


def good(spec: Resource, record: Any) -> Row:
    row = one(spec, record)
    assert isinstance(row, Row), row
    return row


def bad(spec: Resource, record: Any, server_time: int | None = None) -> tuple[str, str]:
    row = one(spec, record, server_time)
    assert isinstance(row, BadRow), row
    return row.code, row.problem


def test_a_good_record() -> None:
    """Every later comparison depends on this mapping of fields to columns."""
    record = poi(Connections=[{"PowerKW": 22.0, "ID": 1}], DataProviderID=1)
    row = good(OCM, record)
    assert (row.external_id, row.stamp) == ("7", APRIL)
    assert json.loads(row.document) == record
    assert row.values == {
        "title": "Plaza Mayor",
        "country": 210,
        "latitude": 40.4,
        "longitude": -3.7,
        "provider": 1,
        "created_at": None,
        "connections": '[{"ID":1,"PowerKW":22.0}]',
    }


# -- bad rows --


@pytest.mark.parametrize(
    ("record", "code", "problem"),
    [
        ({"DateLastStatusUpdate": "2026-04-01"}, "missing_key", "has no key"),
        (poi(None), "missing_key", "its key is None"),
        (poi(""), "missing_key", "its key is ''"),
        (poi(True), "bad_type", "its key must be text or an integer (is True)"),
        (poi(1.5), "bad_type", "its key must be text or an integer (is 1.5)"),
        (poi([1]), "bad_type", "its key must be text or an integer (is [1])"),
        (poi("x" * 501), "bad_type", "its key has 501 characters; the maximum is 500"),
        (poi(DateLastStatusUpdate=None), "bad_stamp", "is null"),
        (poi(DateLastStatusUpdate="yesterday"), "bad_stamp", "is not a timestamp (is 'yesterday')"),
        (poi(DateLastStatusUpdate=True), "bad_stamp", "is not a timestamp (is True)"),
        (
            poi(DateLastStatusUpdate="2026-13-01T00:00:00Z"),
            "bad_stamp",
            "is not a timestamp (is '2026-13-01T00:00:00Z')",
        ),
        (
            poi(AddressInfo={"Latitude": 91, "Longitude": 0}),
            "out_of_range",
            "AddressInfo.Latitude: must be between -90 and 90 (is 91)",
        ),
        (poi(AddressInfo={"Longitude": 0}), "bad_type", "AddressInfo.Latitude: must not be null"),
        (
            poi(AddressInfo={"Latitude": "north", "Longitude": 0}),
            "bad_type",
            "AddressInfo.Latitude: must be a number (is 'north')",
        ),
        (poi(DataProviderID="one"), "bad_type", "provider: must be an integer (is 'one')"),
        (poi(DataProviderID=2**63), "out_of_range", f"provider: must fit into 64 bits (is {2**63})"),
        (poi(DateCreated="then"), "bad_type", "created_at: must be an instant (is 'then')"),
        ("a line of text", "bad_type", "must be an object (is 'a line of text')"),
        (None, "bad_type", "must be an object (is None)"),
    ],
)
def test_a_bad_record_has_a_code_and_a_reason(record: Any, code: str, problem: str) -> None:
    """A user can only correct the spec or the source if each bad record says what is wrong with it."""
    assert bad(OCM, record) == (code, problem)


def test_a_record_that_is_too_large() -> None:
    """One document of a gigabyte must not block a million others."""
    spec = resource(guards={"row_bytes_max": 100})
    assert bad(spec, {"id": 1, "text": "x" * 100}) == ("too_large", "has 118 bytes; at most 100 are taken")


def test_what_cannot_be_written_as_json_again_is_kept_all_the_same() -> None:
    """json.loads accepts half a surrogate pair, but no database stores it."""
    value = "\ud800"
    row = one(resource(), {"id": 1, "odd": value})
    assert isinstance(row, BadRow)
    assert (row.code, row.external_id) == ("bad_type", "1")
    assert json.loads(row.document) == {"id": 1, "odd": value}


def test_the_same_key_twice_in_a_page() -> None:
    """One of them is wrong, and one statement cannot write both; the first one stays."""
    rows, bad_rows = RowBuilder(resource()).build([{"id": 1, "n": 1}, {"id": 2}, {"id": "1", "n": 2}])
    assert [row.external_id for row in rows] == ["1", "2"]
    assert [(row.position, row.external_id, row.code) for row in bad_rows] == [(2, "1", "duplicate_key_in_page")]


def test_a_bad_record_does_not_take_its_key_away() -> None:
    """Otherwise a broken record would push a good one of the same key into quarantine."""
    spec = resource(stamp={"field": "at"})
    rows, bad_rows = RowBuilder(spec).build([{"id": 1, "at": "?"}, {"id": 1, "at": 5}])
    assert ([row.external_id for row in rows], [row.code for row in bad_rows]) == (["1"], ["bad_stamp"])


def test_a_stamp_from_the_far_future() -> None:
    """A row with a stamp in the year 2999 would refuse every real change until then."""
    record = poi(DateLastStatusUpdate="2026-04-03T00:00:00Z")
    assert bad(OCM, record, server_time=APRIL)[0] == "bad_stamp"
    near = one(OCM, poi(DateLastStatusUpdate="2026-04-01T00:00:30Z"), server_time=APRIL)
    assert isinstance(near, Row), "sources round stamps up"


def test_a_stamp_may_be_missing_only_if_the_spec_says_so() -> None:
    """A renamed field would make every row look old, so no row would ever be updated again."""
    assert bad(resource(stamp={"field": "at"}), {"id": 1}) == ("bad_stamp", "is missing")
    assert good(resource(stamp={"field": "at", "optional": True}), {"id": 1}).stamp == 0
    assert good(resource(), {"id": 1}).stamp == 0


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["ID", "AddressInfo", "DateLastStatusUpdate", "Latitude", "Connections"]), inner
            )
        ),
        max_leaves=12,
    )
)
def test_nothing_that_a_source_sends_stops_a_page(record: Any) -> None:
    """One unexpected value must not lose the good rows of its page."""
    rows, bad_rows = RowBuilder(OCM).build([record, poi(1)])
    assert len(rows) + len(bad_rows) == 2
    assert rows
    for row in bad_rows:
        json.loads(row.document)


# -- stamps --


@pytest.mark.parametrize(
    "value",
    [
        "2026-04-01T00:00:00Z",
        "2026-04-01T00:00Z",
        "2026-04-01T02:00:00+02:00",
        "2026-04-01T00:00:00",
        "2026-04-01 00:00:00.000000",
        "2026-04-01",
        1_775_001_600,
        1_775_001_600.0,
        1_775_001_600_000,
        "1775001600",
        "1775001600000",
    ],
)
def test_stamps_in_every_notation(value: Any) -> None:
    """A stamp without a zone is UTC: the machine's own zone must not decide which row is newer."""
    assert parse_stamp(value) == APRIL


@pytest.mark.parametrize(
    "value", [None, "", "-", "soon", "20260401x", [], {}, True, 1e300, -1e300, float("nan"), float("inf"), "9" * 40]
)
def test_what_is_no_stamp(value: Any) -> None:
    """A wrong stamp in the far future would block all later updates of its row."""
    assert parse_stamp(value) is None


def test_a_declared_format_is_not_guessed_at() -> None:
    """Milliseconds of January 1970 look like seconds."""
    assert parse_stamp(5_000, "epoch_ms") == 5_000_000
    assert parse_stamp(5_000, "epoch") == 5_000_000_000
    assert parse_stamp(1_775_001_600, "iso") is None


# -- content hash --


def test_volatile_fields_do_not_change_the_hash() -> None:
    """These fields differ with every request, so each run would rewrite every row."""
    first = good(OCM, poi(IsRecentlyVerified=True, DateLastVerified="2026-01-01"))
    far = {**poi()["AddressInfo"], "Distance": 5.5}
    assert good(OCM, poi(IsRecentlyVerified=False)).content_hash == first.content_hash
    assert good(OCM, poi(AddressInfo=far)).content_hash == first.content_hash


def test_everything_else_does_and_the_stamp_too() -> None:
    """A change that does not change the hash would never be written."""
    first = good(OCM, poi()).content_hash
    assert good(OCM, poi(DateLastStatusUpdate="2026-04-01T00:01:00Z")).content_hash != first
    assert good(OCM, poi(NumberOfPoints=2)).content_hash != first
    assert good(OCM, poi(AddressInfo={**poi()["AddressInfo"], "Town": "Madrid"})).content_hash != first


def test_the_order_of_fields_does_not_change_the_hash() -> None:
    """JSON objects have no order, so a reordered reply must not rewrite every row."""
    turned = dict(reversed(poi().items()))
    assert good(OCM, turned).content_hash == good(OCM, poi()).content_hash


def test_the_document_keeps_what_the_hash_leaves_out() -> None:
    """Ignored fields must not disappear from the stored document."""
    record = poi(IsRecentlyVerified=True)
    assert json.loads(good(OCM, record).document)["IsRecentlyVerified"] is True
    assert record["IsRecentlyVerified"] is True


def test_volatile_fields_inside_lists() -> None:
    """A counter inside a list would mark every row as changed in every run."""
    spec = resource(volatile=["items[*].seen", "items[*].deep.seen", "first[0]", "whole", "whole.part"])
    plain = {"id": 1, "items": [{"a": 1, "deep": {}}, 5], "first": [None, 2]}
    noisy = {"id": 1, "items": [{"a": 1, "seen": 9, "deep": {"seen": 3}}, 5], "first": [7, 2], "whole": {"part": 1}}
    assert good(spec, noisy).content_hash == good(spec, plain).content_hash


# -- columns --


@pytest.mark.parametrize(
    ("type_", "value", "projected"),
    [
        ("text", "x", "x"),
        ("text", 5, "5"),
        ("text", True, "true"),
        ("integer", 5, 5),
        ("integer", "-5", -5),
        ("integer", 5.0, 5),
        ("integer", "", None),
        ("real", 5, 5.0),
        ("real", "5.5", 5.5),
        ("real", "", None),
        ("boolean", True, True),
        ("boolean", "false", False),
        ("boolean", 1, True),
        ("timestamp", "2026-04-01", APRIL),
        ("timestamp", "", None),
        ("json", {"b": 1, "a": [None]}, '{"a":[null],"b":1}'),
        ("json", None, None),
    ],
)
def test_what_says_the_same_is_taken(type_: str, value: Any, projected: Any) -> None:
    """Files contain only text, and some sources write numbers as text."""
    spec = resource(columns={"c": {"path": "v", "type": type_}})
    values = good(spec, {"id": 1, "v": value}).values
    assert values == {"c": projected}
    assert type(values["c"]) is type(projected)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("text", []),
        ("integer", 5.5),
        ("integer", True),
        ("integer", "5.5"),
        ("integer", {}),
        ("real", True),
        ("real", "nan"),
        ("real", "1e999"),
        ("boolean", 2),
        ("boolean", "yes"),
        ("boolean", []),
        ("timestamp", "x"),
    ],
)
def test_what_does_not_is_a_bad_row(type_: str, value: Any) -> None:
    """A guessed number is worse than a row that is known to be missing."""
    spec = resource(columns={"c": {"path": "v", "type": type_}})
    assert bad(spec, {"id": 1, "v": value})[0] == "bad_type"


def test_a_column_of_many_values() -> None:
    """Nested lists are common in APIs, and keeping only the first value would lose the others."""
    spec = resource(columns={"powers": {"path": "list[*].kw", "type": "json"}})
    assert good(spec, {"id": 1, "list": [{"kw": 1}, {"kw": 2}]}).values == {"powers": "[1,2]"}
