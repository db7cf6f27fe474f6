"""A request's body ─► a value, strictly: bounded in size and depth, no key twice, no NaN, no NUL, nothing unknown."""

import asyncio
import json
import re
from array import array
from functools import cache
from itertools import accumulate
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from starlette.requests import Request

from leaseway.api.errors import Problem

T = TypeVar("T")

BYTES_MAX = 256 * 1024
BULK_BYTES_MAX = 8 * 1024 * 1024
DEPTH_MAX = 64
PLACE = re.compile(r" - at `\$([^`]*)`$")
"""How msgspec says where."""
TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""With or without its end, so that it fits wherever it begins, and nothing is read twice."""
NUL = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")
"""And not a backslash that is followed by the word u0000."""
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One deeper, or one less: -1 is written as 255."""
SLOW_SECONDS = 30.0
"""A body that takes longer keeps a connection for nothing."""


async def body_of(request: Request, kind: type[T], bytes_max: int = BYTES_MAX) -> T:
    raw = await bytes_of(request, bytes_max)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in ("application/json", ""):
        raise Problem(415, "not_json", f"the body must be application/json (is {content_type[:100]})")
    return value_of(raw, kind)


async def bytes_of(request: Request, bytes_max: int) -> bytes:
    """Never more than so many in memory, whatever was announced."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > bytes_max:
        raise too_large(bytes_max)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "encoded", "a packed body is not taken; send it as it is")
    try:
        async with asyncio.timeout(SLOW_SECONDS):
            return await read(request, bytes_max)
    except TimeoutError as error:
        detail = f"the body did not come within {SLOW_SECONDS:g} seconds"
        raise Problem(408, "too_slow", detail, headers={"Connection": "close"}) from error


async def read(request: Request, bytes_max: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > bytes_max:
            raise too_large(bytes_max)
        chunks.append(chunk)
    return b"".join(chunks)


def too_large(bytes_max: int) -> Problem:
    return Problem(413, "too_large", f"the body must have at most {bytes_max:,} bytes")


def value_of(raw: bytes, kind: type[T]) -> T:
    check(raw)
    return decoded(raw, kind)


def decoded(raw: bytes, kind: type[T]) -> T:
    """Of a text that was checked, or of a part of it."""
    try:
        return cast(T, decoder_of(cast(Any, kind)).decode(raw))
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "not_json", f"the body is no JSON: {error}") from error


@cache
def decoder_of(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def invalid(text: str) -> Problem:
    found = PLACE.search(text)
    place = "" if found is None else found.group(1)
    pointer = "/" + place.replace("[", ".").replace("]", "").strip(".").replace(".", "/") if place else ""
    said = text if found is None else text[: found.start()]
    return Problem(
        422, "invalid", f"{place.lstrip('.') or 'the body'}: {said}", errors=[{"pointer": pointer, "detail": said}]
    )


def check(raw: bytes) -> None:
    """What a lenient reader takes, and two readers may take differently."""
    if not raw.strip():
        raise Problem(400, "not_json", "the body is empty; send a JSON object")
    if b"\x00" in raw or (b"\\u0000" in raw and NUL.search(raw)):
        raise Problem(400, "nul", "text must not hold NUL, which no database keeps")
    if raw.count(b"[") + raw.count(b"{") > DEPTH_MAX and deeper_than(raw, DEPTH_MAX):
        raise Problem(400, "too_deep", f"the body must be nested at most {DEPTH_MAX} deep")
    try:
        STRICT.decode(raw.decode())
    except (ValueError, RecursionError) as error:
        raise Problem(400, "not_json", f"the body is no JSON: {error}") from error


def deeper_than(raw: bytes, depth_max: int) -> bool:
    """Without a loop of our own over the text, which would keep everybody else waiting. Brackets that do not fit are no
    affair of ours: the reader finds them."""
    steps = array("b", TEXT.sub(b"", raw).translate(STEPS, NO_BRACKETS))
    return max(accumulate(steps), default=0) > depth_max


def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        # Each name is looked at once: there may be as many as fit into a body.
        seen: set[str] = set()
        twin = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{twin[:100]!r} is there twice")
    return value


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


STRICT = json.JSONDecoder(object_pairs_hook=without_twins, parse_constant=refuse_constant)
