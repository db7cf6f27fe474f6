"""host ─► [caller] ─► scope: who asks, by what he brings: a key, a JWT, or the cookie of a session.

Whoever brings nothing is nobody, and the route decides what nobody may. Whoever brings something wrong is refused, and
is not told what was wrong with it. A cookie that is over is nothing: the browser shall see the page where to log in.
"""

import asyncio
import hmac
from typing import Protocol

from msgspec.structs import replace
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from leaseway.api.auth.jwt import Jwts
from leaseway.api.errors import Problem, refused
from leaseway.api.ttl_cache import Remembered
from leaseway.domain.api_key import ApiKey, Session, hash_secret, parse_key_text
from leaseway.domain.errors import LeasewayError
from leaseway.domain.identity import Caller
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.ports.clock import Clock
from leaseway.ports.key_store import KEYS_MAX, KeyStore

BELIEF_SECONDS = 30.0
"""So late may a revocation be felt in another process."""
ABSENT_SECONDS = 5.0
TOUCH_SECONDS = 60.0
CLOCK_SECONDS = 60.0
"""How long the store's clock is counted on before it is asked again."""
COOKIE = "leaseway_session"
SECURE_COOKIE = "__Host-leaseway_session"
"""Where the browser came by https: it is neither sent in the clear nor set by another host."""
CSRF_HEADER = "x-csrf-token"
NO_KEY = hash_secret("")


class Keeper(KeyStore, Protocol):
    async def now(self) -> Instant: ...


class Door:
    """Of one process and its loop."""

    def __init__(self, store: Keeper, clock: Clock, jwts: Jwts | None = None) -> None:
        self._store = store
        self._clock = clock
        self._jwts = jwts
        bounds = {"seconds": BELIEF_SECONDS, "absent_seconds": ABSENT_SECONDS}
        self._keys = Remembered[ApiKey](store.key, clock, most=KEYS_MAX, **bounds)
        self._sessions = Remembered[Session](store.session, clock, most=KEYS_MAX, **bounds)
        self._time = StoreTime(store, clock)
        self._uses = Uses(store, clock)

    async def caller(self, headers: Headers) -> Caller | None:
        """None: he brought no credential."""
        given = headers.getlist("authorization")
        if not given:
            session = session_in(headers)
            return None if session is None else await self._caller_of(session)
        scheme, _, credential = given[0].partition(" ")
        if len(given) > 1 or scheme.lower() != "bearer":
            raise refused()
        if parse_key_text(credential) is None and self._jwts is not None:
            return await self._jwts.caller(credential)
        return (await self.key(credential)).caller()

    async def key(self, text: str) -> ApiKey:
        """The key that opens, or a refusal."""
        parts = parse_key_text(text)
        if parts is None:
            raise refused()
        id_, secret = parts
        key = await self._keys.get(id_)
        # An unknown id takes as long as a wrong secret.
        opens = key.opens_with(secret) if key is not None else hmac.compare_digest(NO_KEY, hash_secret(secret))
        now = await self._time.now()
        if key is None or not opens or not key.is_live(now):
            raise refused()
        self._uses.add(id_, now)
        return key

    def refuse_forged(self, headers: Headers) -> None:
        """Browsers send cookies by themselves, for pages of others too. What such a page cannot know is the token."""
        session = session_in(headers)
        if "authorization" in headers or session is None:
            return
        if not hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), csrf_token(session).encode()):
            raise Problem(403, "csrf", f"send the csrf_token of GET /v1/session in the header {CSRF_HEADER}")

    def forget_key(self, id_: str) -> None:
        self._keys.forget(id_)

    def forget_session(self, id_: str) -> None:
        self._sessions.forget(hash_secret(id_))

    async def close(self) -> None:
        await self._uses.close()

    async def _caller_of(self, id_: str) -> Caller | None:
        session = await self._sessions.get(hash_secret(id_))
        now = await self._time.now()
        if session is None or session.expires_at <= now:
            return None
        key = await self._keys.get(session.key)
        if key is None or not key.is_live(now):
            return None
        self._uses.add(key.id, now)
        caller = key.caller()
        return replace(caller, until=min(session.expires_at, caller.until or session.expires_at))


class StoreTime:
    """The store's clock, asked now and then and counted on by ours."""

    def __init__(self, store: Keeper, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._said: Instant | None = None
        self._at = 0.0

    async def now(self) -> Instant:
        monotonic = self._clock.monotonic()
        if self._said is None or monotonic - self._at > CLOCK_SECONDS:
            self._said, self._at = await self._store.now(), monotonic
        return self._said + round((monotonic - self._at) * SECOND_US)


class Uses:
    """When keys were used last, written now and then: nobody waits for it, and nobody fails by it."""

    def __init__(self, store: KeyStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._used: dict[str, Instant] = {}
        self._written_at: float | None = None
        self._writing: asyncio.Task[None] | None = None

    def add(self, id_: str, now: Instant) -> None:
        self._used[id_] = now
        monotonic = self._clock.monotonic()
        if self._written_at is None or monotonic - self._written_at >= TOUCH_SECONDS:
            self._written_at = monotonic
            if self._writing is None or self._writing.done():
                # The door is its parent, and waits for it when it closes.
                self._writing = asyncio.get_running_loop().create_task(self._write())

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        await self._write()

    async def _write(self) -> None:
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await self._store.touch_keys(used)
        except LeasewayError:
            # It is news for people, not a promise; the next writing brings it.
            self._used = used | self._used


def session_in(headers: Headers) -> str | None:
    """The id in the cookie. Of two with one name somebody else may have set one: then there is none."""
    if "cookie" not in headers or len(headers.getlist("cookie")) > 1:
        return None
    text = headers["cookie"]
    for name in (SECURE_COOKIE, COOKIE):
        if sum(part.strip().partition("=")[0] == name for part in text.split(";")) == 1:
            return cookie_parser(text).get(name) or None
    return None


def csrf_token(session: str) -> str:
    """Who has the session's id knows it; who only makes a browser send it does not."""
    return hash_secret(f"csrf:{session}")
