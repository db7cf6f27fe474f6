"""Request bodies that two parsers could read differently, or that are expensive to parse."""

from typing import Any

import pytest
from msgspec import Struct
from tests.api.running_service import Served

from leaseway.api.errors import Problem
from leaseway.api.request_body import DEPTH_MAX, parse_strictly
from leaseway.domain.validators import is_deeper_than, outside_strings


class Anything(Struct, forbid_unknown_fields=True):
    x: Any = None


def code_of(raw: bytes) -> str:
    with pytest.raises(Problem) as caught:
        parse_strictly(raw, Anything)
    return f"{caught.value.status} {caught.value.code}"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "400 not_json"),
        (b"   ", "400 not_json"),
        (b"{", "400 not_json"),
        (b'{"x": 1} {"x": 2}', "400 not_json"),
        (b'{"x": 1, "x": 2}', "400 not_json"),
        (b'{"x": {"y": 1, "y": 2}}', "400 not_json"),
        (b'{"x": NaN}', "400 not_json"),
        (b'{"x": -Infinity}', "400 not_json"),
        (b'{"x": 1e400}', "422 invalid"),
        (b'{"x": "a\\u0000b"}', "400 nul"),
        (b'{"x": "a\x00b"}', "400 nul"),
        (b'{"x": "\\ud800"}', "400 not_json"),
        (b'{"x": "\xff"}', "400 not_json"),
        (b"\xef\xbb\xbf{}", "400 not_json"),
        ("{}".encode("utf-16"), "400 nul"),
        (b"[1]", "422 invalid"),
        (b'{"y": 1}', "422 invalid"),
        (b'{"x": ' + b"9" * 5_000 + b"}", "400 not_json"),
        (b'{"x": ' + b"[" * 64 + b"]" * 64 + b"}", "400 too_deep"),
        (b"[" * 100_000, "400 too_deep"),
    ],
)
def test_what_is_no_strict_json_is_refused_with_a_reason(raw: bytes, code: str) -> None:
    """A body that two parsers read differently can pass a check in one and take effect in the other."""
    assert code_of(raw) == code


def test_text_that_only_looks_like_nul_or_like_brackets_is_taken() -> None:
    """A check on raw bytes must not refuse valid text of a user."""
    assert parse_strictly(rb'{"x": "\\u0000"}', Anything).x == r"\u0000"
    text = "[" * 500 + '\\"' + "{" * 500
    assert len(parse_strictly(f'{{"x": "{text}"}}'.encode(), Anything).x) == 1_001


@pytest.mark.parametrize("inner", [b"", b'"]"', b'"\\"["', b"1, {}, []"])
def test_depth_is_counted_outside_of_text(inner: bytes) -> None:
    """Brackets in text are not nesting, and counting them would refuse valid bodies."""
    fits = b"[" * DEPTH_MAX + inner.replace(b"{}, []", b"2") + b"]" * DEPTH_MAX
    assert not is_deeper_than(outside_strings(fits), DEPTH_MAX)
    assert is_deeper_than(outside_strings(b"[" + fits + b"]"), DEPTH_MAX)


def test_an_error_points_at_its_place() -> None:
    """In a body with many items, the client must learn which one to correct."""

    class Deep(Struct):
        items: list[Anything]

    with pytest.raises(Problem) as caught:
        parse_strictly(b'{"items": [{}, {"z": 1}]}', Deep)
    assert caught.value.errors[0]["pointer"] == "/items/1"


async def test_too_large_is_refused_whatever_was_announced(served: Served) -> None:
    """A client may omit Content-Length or send a wrong one, so the received bytes must be counted."""

    async def chunks() -> Any:
        for _ in range(6):
            yield b" " * 50_000

    large = b'{"kind": "add", "arguments": {"a": 1, "text": "' + b"x" * 300_000 + b'"}}'
    answers = [
        await served.client.post("/v1/jobs", content=large),
        await served.client.post("/v1/jobs", content=chunks()),
    ]
    assert [(each.status_code, each.json()["code"]) for each in answers] == [(413, "too_large")] * 2


async def test_only_plain_json_is_taken(served: Served) -> None:
    """A browser form can send text/plain across origins, and packed bodies can be decompression bombs."""
    for headers in ({"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}):
        answer = await served.client.post("/v1/jobs", content=b"{}", headers=headers)
        assert answer.status_code == 415
        assert answer.headers["content-type"] == "application/problem+json"
