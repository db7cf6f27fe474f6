"""What the routes of operators share: lists that fit on pages, versions that must match, and errors that point into the
body."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Generic, NamedTuple, Protocol, TypeVar

from fastapi import Query, Request

from leaseway.api.errors import Problem
from leaseway.api.settings import ServiceSettings
from leaseway.domain.errors import BadValue, Stale, UsageError
from leaseway.domain.identity import Caller
from leaseway.ports.store_stats import Pulse
from leaseway.worker.environment import Environment

MAC_BYTES = 16
TEXT_MAX = 400


def cursor_of(secret: bytes, place: str, about: str) -> str:
    """`about`: the list and whose it is. The cursor of one is no cursor of another."""
    raw = place.encode()
    return base64.urlsafe_b64encode(mac_of(secret, raw, about) + raw).decode().rstrip("=")


def place_of(secret: bytes, cursor: str, about: str) -> str:
    try:
        if len(cursor) > TEXT_MAX:
            raise ValueError
        signed = base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        mac, raw = signed[:MAC_BYTES], signed[MAC_BYTES:]
        if not raw or not hmac.compare_digest(mac, mac_of(secret, raw, about)):
            raise ValueError
        return raw.decode()
    except (ValueError, binascii.Error) as error:
        raise Problem(
            400, "bad_cursor", "cursor: this is none of ours, or of another list; start again without it"
        ) from error


def mac_of(secret: bytes, raw: bytes, about: str) -> bytes:
    return hmac.digest(secret, about.encode() + b"\n" + raw, hashlib.sha256)[:MAC_BYTES]


T = TypeVar("T")
Look = Callable[[], Awaitable[tuple[T | None, int | None]]]
"""What is there, and its version; nothing, if there is none."""
Change = Callable[[T, int], Awaitable[int]]
"""To this, if the version is still the one that was seen; 0: if there is still none."""
TRIES_MAX = 10


class Done(NamedTuple, Generic[T]):
    before: T | None
    after: T
    version: int


Limit = Annotated[int, Query(ge=1, le=200)]
VERSION = re.compile(r'(?:W/)?"(\d{1,18})"')
GONE = "cursor: what it named is gone; start again without it"


class Service(Protocol):
    """As much of the service as its routes need."""

    settings: ServiceSettings
    world: Environment
    stopping: asyncio.Event


def service_in(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def pulse_of(request: Request) -> Pulse:
    store = service_in(request).world.store
    if not isinstance(store, Pulse):
        raise UsageError("this store does not tell how it is doing; serve one that does: sqlite:///… or postgresql://…")
    return store


# -- lists ----------------------------------------------------------------------------------------------------------


def paged(
    request: Request, caller: Caller, items: Sequence[T], name: Callable[[T], str], limit: int, cursor: str | None
) -> tuple[Sequence[T], str | None]:
    """A part of a list that is short enough to be read as a whole, and where it goes on. The list has an order of its
    own, and the cursor names the last item that was shown."""
    secret, about = service_in(request).settings.cursor_secret, f"{request.url.path} {caller.name}"
    begin = 0 if cursor is None else after(place_of(secret, cursor, about), [name(item) for item in items])
    shown = items[begin : begin + limit]
    is_more = begin + limit < len(items)
    return shown, cursor_of(secret, mark_of(name(shown[-1])), about) if is_more else None


def after(mark: str, names: Sequence[str]) -> int:
    for index, name in enumerate(names):
        if mark_of(name) == mark:
            return index + 1
    raise Problem(400, "bad_cursor", GONE)


def mark_of(name: str) -> str:
    """Names may be longer than a cursor may be."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


# -- versions -------------------------------------------------------------------------------------------------------


def changing(request: Request) -> asyncio.Lock:
    """One change at a time, for what no version guards: nobody of this process comes between a look and what follows
    from it. Other processes may, for a moment."""
    state = request.app.state
    if not hasattr(state, "changing"):
        state.changing = asyncio.Lock()
    lock: asyncio.Lock = state.changing
    return lock


async def changed(
    request: Request, what: str, look: Look[T], make: Callable[[T | None], T], change: Change[T]
) -> Done[T]:
    """What `make` says becomes of what is there. The store compares the version where it writes, so nobody comes
    between, from whatever process; who names no version himself is tried again with what there is by then."""
    for _ in range(TRIES_MAX):
        before, version = await look()
        check_version(request, what, version)
        after = make(before)
        try:
            return Done(before, after, await change(after, version or 0))
        except Stale:
            continue
    raise Problem(409, "busy", f"{what}: others change it all the time; try again", headers={"Retry-After": "1"})


def etag_of(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def check_version(request: Request, what: str, version: int | None) -> None:
    """`If-Match`: nobody has changed it since it was looked at. `If-None-Match: *`: there is none yet.

    `version`: the present one; None: there is none."""
    wanted, unwanted = request.headers.get("if-match"), request.headers.get("if-none-match")
    if unwanted is not None:
        if unwanted.strip() != "*":
            raise Problem(400, "bad_precondition", "If-None-Match: only * is understood here: there is none yet")
        if version is not None:
            raise stale(what, "is there already", version)
    if wanted is None or (wanted.strip() == "*" and version is not None):
        return
    if version is None:
        raise stale(what, "is not there", None)
    if version not in versions_in(wanted):
        raise stale(what, f"is at version {version}, not at the one that was named; look at it again", version)


def versions_in(text: str) -> list[int]:
    found = [VERSION.fullmatch(each.strip()) for each in text[:1_000].split(",")]
    if not all(found):
        raise Problem(400, "bad_precondition", 'If-Match: must be the ETag of an answer, like "7"')
    return [int(each[1]) for each in found if each is not None]


def stale(what: str, why: str, version: int | None) -> Problem:
    return Problem(412, "stale", f"{what} {why}", extra={"version": version})


# -- errors ---------------------------------------------------------------------------------------------------------


@contextmanager
def pointing(what: str, default: str, names: Mapping[str, str] | None = None) -> Iterator[None]:
    """The domain names a limit and its part ("limit maps: burst"); who sent a body wants to know its field (/burst).

    `default`: the field for what is said about the whole. `names`: parts that are called otherwise in the body."""
    try:
        yield
    except BadValue as error:
        if error.field != what and not error.field.startswith(f"{what}:"):
            raise
        part = error.field.removeprefix(what).removeprefix(":").strip().partition(":")[0]
        raise BadValue((names or {}).get(part, part) or default, error.problem) from error


def unknown(what: str, name: str, way_out: str = "") -> Problem:
    return Problem(404, "not_found", f"there is no {what} {name[:200]!r}" + (f"; {way_out}" if way_out else ""))
