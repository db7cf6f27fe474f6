"""Paths into documents: present values, missing values, and the position of an error in a path."""

from typing import Any

import pytest

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.jsonpath import MISSING, parse_path

DOCUMENT: dict[str, Any] = {
    "a": {"b": [{"c": 1}, {"c": None}, {}], "odd name": 2, "x-y": 3},
    "items": [],
    "links": [{"rel": "self", "href": "/1"}, "odd", {"rel": "next", "href": "/2"}],
    "null": None,
}


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("$", DOCUMENT),
        ("$.a.b[0].c", 1),
        ("a.b[0].c", 1),
        ("$.a['odd name']", 2),
        ('$["a"]["odd name"]', 2),
        ("$.a.x-y", 3),
        ("$.a.b[1].c", None),
        ("$.null", None),
        ("$.a.b[*].c", 1),
        ("$.a.b[2].c", MISSING),
        ("$.a.b[9]", MISSING),
        ("$.a.c.d", MISSING),
        ("$.null.x", MISSING),
        ("$.a[0]", MISSING),
        ("$.items[0]", MISSING),
        ("$.items[*].x", MISSING),
        ("$.a.b[-1]", {}),
        ("$.a.b[-3].c", 1),
        ("$.a.b[-4].c", MISSING),
        ("$.items[-1]", MISSING),
        ("$.links[?rel=='next'].href", "/2"),
        ('$.links[?(@.rel == "self")].href', "/1"),
        ("$.links[?rel=='prev'].href", MISSING),
        ("$.a[?rel=='next']", MISSING),
    ],
)
def test_what_is_there(text: str, first: object) -> None:
    """Null is a value of the source; a missing field is not."""
    assert parse_path("path", text).first(DOCUMENT) == first


def test_everything_below_a_star() -> None:
    """A missing list must give no values instead of an error, because optional fields are common."""
    assert parse_path("path", "$.a.b[*].c").all(DOCUMENT) == [1, None]
    assert parse_path("path", "$.items[*]").all(DOCUMENT) == []
    assert parse_path("path", "$.nothing[*]").all(DOCUMENT) == []


@pytest.mark.parametrize(
    "text", ["$", "$.a.b[0]", "$.a[-1]", "$.links[?rel=='next'].href", "$['odd name'][*].c", "$.x-y"]
)
def test_a_path_is_written_as_it_is_read(text: str) -> None:
    """Error messages show paths, and users copy them back into the spec."""
    assert str(parse_path("path", text)) == text
    assert parse_path("path", str(parse_path("path", text))) == parse_path("path", text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must be a path of 1 to 500 characters, such as '$.items' (is '')"),
        ("x" * 501, "must be a path of 1 to 500 characters"),
        ("$.", "'$.' is not a path: at character 2 ('.'), a name must follow the dot"),
        ("$..a", "at character 2 ('..a'), '..' is not supported; write the whole path"),
        ("$.a[1:2]", "at character 4 ('[1:2]'), slices are not supported; write [0], [-1] or [*]"),
        ("$.a[?(@.b)]", "at character 4 ('[?(@.b)]'), the only filter is [?name=='value']"),
        ("$.a b", "at character 4 (' b'), expected .name, ['name'], [0] or [*]"),
        ("$a", "at character 2 ('a'), expected .name, ['name'], [0] or [*]"),
        ("1a", "at character 1 ('1a'), expected .name, ['name'], [0] or [*]"),
        ("$" + ".a" * 21, "has 21 steps; at most 20 are followed"),
    ],
)
def test_a_wrong_path_is_told_with_its_character(text: str, problem: str) -> None:
    """A long path with one wrong character is hard to correct without its position."""
    with pytest.raises(BadValue, match=r"^resource\.key: ") as caught:
        parse_path("resource.key", text)
    assert problem in str(caught.value)
