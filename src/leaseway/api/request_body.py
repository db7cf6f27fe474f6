"""request body ─► [strict JSON] ─► struct

Bodies are bounded in size, depth and time. Duplicate keys, NaN, NUL characters and unknown fields are rejected, because
other JSON readers may interpret them differently.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from starlette.requests import Request

from leaseway.api.errors import Problem
from leaseway.domain.errors import BadValue
from leaseway.domain.validators import is_deeper_than, outside_strings
from leaseway.ports.clock import Clock
from leaseway.stores.tenant_share import CALLING_TENANT

A = TypeVar("A")
T = TypeVar("T")
Parse = Callable[[bytes, type[T]], T]

BYTES_MAX = 256 * 1024
BULK_BYTES_MAX = 8 * 1024 * 1024
LOGIN_BYTES_MAX = 4 * 1024
"""For bodies of clients that are not known yet."""
LARGE_BYTES = 256 * 1024
"""Larger bodies are parsed in a thread, so that they do not block the event loop."""
PARSERS = ThreadPoolExecutor(2, thread_name_prefix="leaseway-body")
"""Of the interpreter's time, each thread that parses takes as much as the event loop, so there are few of them."""
TURN_SECONDS = 0.005
BYTES_PER_VALUE_MIN = 8
VALUES_MIN = 20_000
"""A body of [],[],[],… needs twenty times its size in memory, and its parser stops all threads meanwhile. So a body may
contain one value per 8 bytes, and every body may contain this many."""
VALUES_MAX = 250_000
DEPTH_MAX = 64
LOCATION = re.compile(r" - at `\$([^`]*)`$")
"""How msgspec reports the location of an error."""
NUL = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")
"""An escaped NUL, but not an escaped backslash that is followed by "u0000"."""
BODY_SECONDS_MAX = 30.0
"""A client that takes longer to send its body occupies a connection for nothing."""
ROOM_BYTES = 64 * 1024 * 1024
ROOM_SECONDS_MAX = 10.0
"""How long a large body waits for room before its request is refused."""


class BodyRoom:
    """Room in memory for the large bodies of all requests of one process. A tenant uses at most half of the room that
    others leave, so that it can neither fill the memory nor keep others from sending theirs."""

    def __init__(self, bytes_max: int = ROOM_BYTES) -> None:
        self._bytes_max = bytes_max
        self._used: Counter[str | None] = Counter()
        self._changed = asyncio.Event()

    @property
    def used(self) -> int:
        return self._used.total()

    async def take(self, tenant: str | None, size: int) -> None:
        """Wait for room. `tenant`: None for operators and workers of all tenants, which have no share."""
        try:
            async with asyncio.timeout(ROOM_SECONDS_MAX):
                while not self._has_room(tenant, size):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise Problem(
                503, "busy", "too many large requests are being received; repeat this one later",
                headers={"Retry-After": "1", "Connection": "close"},
            ) from error  # fmt: skip
        self._used[tenant] += size

    def _has_room(self, tenant: str | None, size: int) -> bool:
        left = self._bytes_max - self.used + self._used[tenant]
        return self._used[tenant] + size <= (left if tenant is None else left // 2)

    def give_back(self, tenant: str | None, size: int) -> None:
        self._used[tenant] -= size
        if not self._used[tenant]:
            del self._used[tenant]
        self._changed.set()


REQUEST_END: ContextVar[ExitStack] = ContextVar("leaseway_request_end")


@contextmanager
def holding_bodies() -> Iterator[None]:
    """Around a request: what it reads takes room until its end, because its values are used until then."""
    with ExitStack() as stack:
        token = REQUEST_END.set(stack)
        try:
            yield
        finally:
            REQUEST_END.reset(token)


async def read_body(request: Request, kind: type[T], bytes_max: int = BYTES_MAX) -> T:
    raw = await read_bytes(request, bytes_max)
    check_content_type(request)
    return await parse_off_the_loop(raw, kind)


async def parse_off_the_loop(raw: bytes, kind: type[T], parse: "Parse[T] | None" = None) -> T:
    """`parse`: in place of `parse_strictly`."""
    parse = parse or parse_strictly
    if len(raw) <= LARGE_BYTES:
        return parse(raw, kind)
    return await asyncio.get_running_loop().run_in_executor(PARSERS, parse, raw, kind)


async def map_in_turns(clock: Clock, function: Callable[[A], T], items: Iterable[A]) -> list[T]:
    """Apply a function to many items. Other requests are served in between, every few milliseconds."""
    results, turn_end = [], clock.monotonic() + TURN_SECONDS
    for item in items:
        results.append(function(item))
        if clock.monotonic() > turn_end:
            await clock.sleep(0)
            turn_end = clock.monotonic() + TURN_SECONDS
    return results


def check_content_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in ("application/json", ""):
        raise Problem(415, "not_json", f"the body must be application/json (is {content_type[:100]})")


async def read_bytes(request: Request, bytes_max: int) -> bytes:
    """The body. At most `bytes_max` bytes are kept in memory, whatever Content-Length says."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > bytes_max:
        raise too_large(bytes_max)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "encoded", "compressed bodies are not supported; send the body without Content-Encoding")
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            return await read_chunks(request, bytes_max, int(announced) if announced.isdigit() else bytes_max)
    except TimeoutError as error:
        detail = f"the body did not arrive within {BODY_SECONDS_MAX:g} seconds"
        raise Problem(408, "too_slow", detail, headers={"Connection": "close"}) from error


async def read_chunks(request: Request, bytes_max: int, expected: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        if size <= LARGE_BYTES < size + len(chunk):
            await take_room(request, expected)
        size += len(chunk)
        if size > bytes_max:
            raise too_large(bytes_max)
        chunks.append(chunk)
    return b"".join(chunks)


async def take_room(request: Request, size: int) -> None:
    """Until there is room, no more of the body is read from the connection."""
    room, tenant, request_end = request.app.state.service.body_room, CALLING_TENANT.get(), REQUEST_END.get()
    await room.take(tenant, size)
    request_end.callback(room.give_back, tenant, size)


def too_large(bytes_max: int) -> Problem:
    return Problem(413, "too_large", f"the body must have at most {bytes_max:,} bytes")


def parse_strictly(raw: bytes, kind: type[T]) -> T:
    check_json(raw)
    return decode(raw, kind)


def decode(raw: bytes, kind: type[T]) -> T:
    """Decode text that `check_json` has accepted, or a part of it."""
    try:
        return cast(T, decoder_for(cast(Any, kind)).decode(raw))
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "not_json", f"the body is not JSON: {error}") from error


@cache
def decoder_for(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def invalid_field(text: str) -> Problem:
    found = LOCATION.search(text)
    location = "" if found is None else found.group(1)
    pointer = "/" + location.replace("[", ".").replace("]", "").strip(".").replace(".", "/") if location else ""
    reason = text if found is None else text[: found.start()]
    detail = f"{location.lstrip('.') or 'the body'}: {reason}"
    return Problem(422, "invalid", detail, errors=[{"pointer": pointer, "detail": reason}])


def check_json(raw: bytes) -> None:
    """Reject what a lenient reader would accept and two readers might read differently."""
    if not raw.strip():
        raise Problem(400, "not_json", "the body is empty; send a JSON object")
    if b"\x00" in raw or (b"\\u0000" in raw and NUL.search(raw)):
        raise Problem(400, "nul", "text must not contain NUL characters, because databases cannot store them")
    if sum(raw.count(sign) for sign in SIGNS) > DEPTH_MAX:
        check_shape(raw)
    try:
        STRICT.decode(raw.decode())
    except (ValueError, RecursionError) as error:
        raise Problem(400, "not_json", f"the body is not JSON: {error}") from error


def check_shape(raw: bytes) -> None:
    """Refuse what takes a parser long: it cannot be interrupted, in whatever thread it runs."""
    values_max = min(max(VALUES_MIN, len(raw) // BYTES_PER_VALUE_MIN), VALUES_MAX)
    too_many = Problem(413, "too_many_values", f"the body must contain at most {values_max:,} values")
    if raw.count(b'"') - raw.count(b'\\"') > 4 * values_max:  # of names and texts
        raise too_many
    outside = outside_strings(raw)
    # Text with more brackets is refused below, and text with more closing ones by the parser.
    if is_deeper_than(outside, DEPTH_MAX, steps_max=2 * values_max):
        raise Problem(400, "too_deep", f"the body must be nested at most {DEPTH_MAX} levels deep")
    if sum(outside.count(sign) for sign in SIGNS) > values_max:
        raise too_many


SIGNS = (b",", b"[", b"{")
"""A body has at most one value more than it has of these. Each list and each object needs memory, also an empty one."""


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        # One pass: an object may have as many keys as fit into a body.
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {twice[:100]!r}")
    return value


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


STRICT = json.JSONDecoder(object_pairs_hook=refuse_duplicates, parse_constant=refuse_constant)


@contextmanager
def body_fields(what: str, default: str, names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Report the domain's errors about "limit maps: burst" as errors of the body's field /burst.

    `default`: the field for errors about the whole value. `names`: fields that have another name in the body."""
    try:
        yield
    except BadValue as error:
        if error.field != what and not error.field.startswith(f"{what}:"):
            raise
        part = error.field.removeprefix(what).removeprefix(":").strip().partition(":")[0]
        raise BadValue((names or {}).get(part, part) or default, error.problem) from error
