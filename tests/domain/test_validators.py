"""Payloads are strict JSON: an accepted value is read back unchanged, and any other value is refused by name."""

import dataclasses
import enum
import json
import math
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.domain.errors import BadValue
from leaseway.domain.validators import EPOCH, PAYLOAD_BYTES_MAX, PAYLOAD_DEPTH_MAX, encode_payload, parse_instant


@dataclasses.dataclass
class Point:
    x: float


class Place(msgspec.Struct):
    point: Point


class Odd(enum.Enum):
    NAN = math.nan


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda number: number, "field:"),
        (lambda number: {"a": [1, {"b": number}]}, "field.a[1].b:"),
        (lambda number: (number,), "field[0]:"),
        (lambda number: {number}, "field[0]:"),
        (lambda number: Place(Point(number)), "field.point.x:"),
    ],
    ids=["bare", "nested", "tuple", "set", "struct"],
)
def test_a_number_that_json_cannot_express_is_refused(
    number: float, wrap: Callable[[float], object], name: str
) -> None:
    """The encoder writes null, so a reader would get nothing instead of a number."""
    with pytest.raises(BadValue, match="JSON cannot represent") as refusal:
        encode_payload(wrap(number), "field")
    assert str(refusal.value).startswith(name)


@pytest.mark.parametrize("item", [0, "", []], ids=ascii)
def test_a_long_name_around_many_values_costs_no_more_than_a_short_one(item: object) -> None:
    """The path of a refused value contains the name. With a path for every value, one payload took a second."""

    def seconds(name: str) -> float:
        before = time.process_time()
        encode_payload({name: [item] * 20_000, "sign": [None, "\\u0000"]}, "field")
        return time.process_time() - before

    assert seconds("N" * 190_000 + "\U0001f600") < 8 * seconds("N") + 0.2


def test_the_name_of_a_refused_value_is_bounded() -> None:
    """It is part of the error, which is logged and sent to the client."""
    value: Any = {"deep": {"x" * 1_000: {"y" * 1_000: [math.nan]}}}
    for _ in range(40):
        value = {"names": value}
    with pytest.raises(BadValue) as refusal:
        encode_payload(value, "field")
    assert refusal.value.field.startswith("field.names.names")
    assert len(refusal.value.field) < 250
    with pytest.raises(BadValue, match=r"field\.a\[1\]\.'b\\x00': contains a NUL"):
        encode_payload({"a": [1, {"b\0": 1}]}, "field")


def test_a_number_hidden_in_an_enum_is_refused() -> None:
    """The encoder looks inside the enum, so the check must do the same."""
    with pytest.raises(BadValue):
        encode_payload({"a": Odd.NAN}, "field")


def test_null_itself_is_welcome() -> None:
    """The fast check looks for null as a sign of an invalid number and must not refuse a real null."""
    assert encode_payload({"a": None, "b": [None, 1.5, "null"]}, "field") == '{"a":null,"b":[null,1.5,"null"]}'


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, ["a\ud83d"]], ids=ascii)
def test_half_a_character_is_refused(value: object) -> None:
    """Programs in other languages could not read a lone surrogate."""
    with pytest.raises(BadValue, match="surrogate"):
        encode_payload(value, "field")


@pytest.mark.parametrize("value", ["\0", {"a": ["x\0y"]}, {"a\0": 1}], ids=ascii)
def test_nul_is_refused(value: object) -> None:
    """PostgreSQL cannot store it, and a value that is accepted on a laptop must be accepted everywhere."""
    with pytest.raises(BadValue, match="NUL"):
        encode_payload(value, "field")


def test_the_letters_of_nul_are_welcome() -> None:
    """A backslash, a u and four zeros are six ordinary characters."""
    assert json.loads(encode_payload("\\u0000", "field")) == "\\u0000"


@pytest.mark.parametrize("hours", [14, -14])
def test_an_instant_that_cannot_be_shown_is_refused(hours: int) -> None:
    """With its offset, a valid datetime may be in the year 10,000 or 0."""
    zone = timezone(timedelta(hours=hours))
    for year in (1970, 9999):
        inside = datetime(year, 6, 1, tzinfo=zone)
        assert EPOCH + timedelta(microseconds=parse_instant("run_at", inside)) == inside
    outside = datetime.max.replace(tzinfo=zone) if hours < 0 else datetime.min.replace(tzinfo=zone)
    for value in (datetime(1969, 1, 1, tzinfo=zone), outside):
        with pytest.raises(BadValue, match="run_at: must be in the years 1970 to 9999"):
            parse_instant("run_at", value)


def test_nesting_has_an_end() -> None:
    """A parser with a smaller stack must be able to read the payload."""
    assert json.loads(encode_payload(nested(PAYLOAD_DEPTH_MAX), "field")) == nested(PAYLOAD_DEPTH_MAX)
    for value in (nested(PAYLOAD_DEPTH_MAX + 1), nested(5_000), endless()):
        with pytest.raises(BadValue, match=f"nested deeper than {PAYLOAD_DEPTH_MAX}"):
            encode_payload(value, "field")


def test_brackets_in_text_are_no_nesting() -> None:
    """Many brackets only trigger the exact check and must not cause a refusal."""
    text = '[{"\\' * PAYLOAD_DEPTH_MAX
    assert json.loads(encode_payload([text] * 3, "field")) == [text] * 3
    wide: list[list[int]] = [[] for _ in range(10 * PAYLOAD_DEPTH_MAX)]
    assert json.loads(encode_payload(wide, "field")) == wide


def test_size_is_counted_in_bytes() -> None:
    """Exactly the limit must be accepted, including the two quotes, for ASCII and other text."""
    assert len(encode_payload("a" * (PAYLOAD_BYTES_MAX - 2), "field")) == PAYLOAD_BYTES_MAX
    assert len(encode_payload("é" * (PAYLOAD_BYTES_MAX // 2 - 1), "field").encode()) == PAYLOAD_BYTES_MAX
    for value in ("a" * (PAYLOAD_BYTES_MAX - 1), "é" * (PAYLOAD_BYTES_MAX // 2)):
        with pytest.raises(BadValue, match="bytes of JSON"):
            encode_payload(value, "field")


@pytest.mark.parametrize(
    "value", [object(), {1: "a"}, {None: 1}, {(1, 2): 3}, 1j, [{2.5: 1}]], ids=lambda v: type(v).__name__
)
def test_what_json_has_no_word_for_is_refused(value: object) -> None:
    """No value may be converted to text silently, and nothing may be pickled."""
    with pytest.raises(BadValue, match="field: cannot be written as JSON"):
        encode_payload(value, "field")


@pytest.mark.parametrize(
    ("value", "way_out"), [({"a": {1: "b"}}, r"write \{str\(key\): …\}$"), ([{1, "a"}], "one type; use a list$")]
)
def test_what_the_encoder_cannot_sort_is_refused_with_the_way_out(value: object, way_out: str) -> None:
    """The message of the encoder names an option that users cannot see. A dict by id is a common result."""
    with pytest.raises(
        BadValue, match=rf"field: cannot be written as JSON: the \w+ of a (dict|set) must be .*{way_out}"
    ):
        encode_payload(value, "field")


def test_the_same_value_has_the_same_text() -> None:
    """Fingerprints compare texts."""
    assert encode_payload({"b": 1, "a": {"d": 2, "c": 3}}, "f") == encode_payload({"a": {"c": 3, "d": 2}, "b": 1}, "f")
    assert encode_payload({3, 1, 2}, "f") == encode_payload({2, 3, 1}, "f") == "[1,2,3]"


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_what_is_accepted_comes_back(value: object) -> None:
    """Any JSON parser must read the same value, not only this one."""
    assert json.loads(encode_payload(value, "field")) == value


@given(
    st.recursive(st.floats() | st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_everything_is_either_kept_or_refused(value: object) -> None:
    """Other exceptions and values that change on the way must not occur."""
    try:
        text = encode_payload(value, "field")
    except BadValue:
        return
    assert json.loads(text) == value
