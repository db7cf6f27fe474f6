"""headers ─► [authentication] ─► caller: by API key, JWT or session cookie.

A request without a credential has no caller, and the route decides whether it may proceed. A request with an invalid
credential is rejected with a response that does not say what is wrong. An expired cookie counts as no credential, so
that the browser shows the login page.
"""

import asyncio
import hmac

from msgspec.structs import replace
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from leaseway.api.auth.jwt import JwtVerifier
from leaseway.api.errors import Problem, invalid_credential
from leaseway.api.ttl_cache import TtlCache
from leaseway.domain.errors import LeasewayError
from leaseway.domain.identity import ApiKey, Caller, Session, hash_secret, parse_key_text
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.ports.clock import Clock
from leaseway.ports.key_store import KEYS_MAX, KeyStore
from leaseway.ports.store import Store

TTL_SECONDS = 30.0
"""A revocation takes effect in other processes within this time."""
NEGATIVE_TTL_SECONDS = 5.0
TOUCH_SECONDS = 60.0
CLOCK_SECONDS = 60.0
"""How often the store's clock is read; in between, the local clock measures the time that has passed."""
COOKIE = "leaseway_session"
SECURE_COOKIE = "__Host-leaseway_session"
"""For HTTPS: browsers never send it unencrypted, and no other host can set it."""
CSRF_HEADER = "x-csrf-token"
NO_KEY = hash_secret("")


class Authenticator:
    """For one process and its event loop."""

    def __init__(self, store: Store, clock: Clock, jwts: JwtVerifier | None = None) -> None:
        self._store = store
        self._clock = clock
        self._jwts = jwts
        ttl = {"ttl_seconds": TTL_SECONDS, "negative_ttl_seconds": NEGATIVE_TTL_SECONDS}
        self._keys = TtlCache[ApiKey](store.keys.find, clock, max_entries=KEYS_MAX, **ttl)
        self._sessions = TtlCache[Session](store.sessions.find, clock, max_entries=KEYS_MAX, **ttl)
        self._time = StoreTime(store, clock)
        self._uses = KeyUses(store.keys, clock)

    async def caller(self, headers: Headers) -> Caller | None:
        """None: the request has no credential."""
        given = headers.getlist("authorization")
        if not given:
            session = session_cookie(headers)
            return None if session is None else await self._session_caller(session)
        scheme, _, credential = given[0].partition(" ")
        if len(given) > 1 or scheme.lower() != "bearer":
            raise invalid_credential()
        if parse_key_text(credential) is None and self._jwts is not None:
            return await self._jwts.caller(credential)
        return (await self.verify_key(credential)).caller()

    async def verify_key(self, text: str) -> ApiKey:
        """The key, or Problem 401."""
        parts = parse_key_text(text)
        if parts is None:
            raise invalid_credential()
        id_, secret = parts
        key = await self._keys.get(id_)
        # An unknown id takes as long as a wrong secret, so that timing does not reveal which ids exist.
        opens = key.opens_with(secret) if key is not None else hmac.compare_digest(NO_KEY, hash_secret(secret))
        now = await self._time.now()
        if key is None or not opens or not key.is_live(now):
            raise invalid_credential()
        self._uses.add(id_, now)
        return key

    def check_csrf(self, headers: Headers) -> None:
        """Browsers send cookies automatically, also for pages of other sites; these cannot know the CSRF token."""
        session = session_cookie(headers)
        if "authorization" in headers or session is None:
            return
        if not hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), csrf_token(session).encode()):
            raise Problem(403, "csrf", f"send the csrf_token from GET /v1/session in the {CSRF_HEADER} header")

    def invalidate_key(self, id_: str) -> None:
        self._keys.invalidate(id_)

    def invalidate_session(self, id_: str) -> None:
        self._sessions.invalidate(hash_secret(id_))

    async def close(self) -> None:
        await self._uses.close()

    async def _session_caller(self, id_: str) -> Caller | None:
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
    """The store's clock, read from time to time and extrapolated with the local clock."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._instant: Instant | None = None
        self._read_at = 0.0

    async def now(self) -> Instant:
        monotonic = self._clock.monotonic()
        if self._instant is None or monotonic - self._read_at > CLOCK_SECONDS:
            self._instant, self._read_at = await self._store.reads.now(), monotonic
        return self._instant + round((monotonic - self._read_at) * SECOND_US)


class KeyUses:
    """When keys were last used. Written from time to time in the background; failures have no effect on requests."""

    def __init__(self, keys: KeyStore, clock: Clock) -> None:
        self._keys = keys
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
                # The authenticator owns the task and awaits it when it closes.
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
            await self._keys.touch(used)
        except LeasewayError:
            # The time of use is informative only; the next write includes it.
            self._used = used | self._used


def session_cookie(headers: Headers) -> str | None:
    """The session id. None if there are two cookies of that name, because another host may have set one of them."""
    if "cookie" not in headers or len(headers.getlist("cookie")) > 1:
        return None
    text = headers["cookie"]
    for name in (SECURE_COOKIE, COOKIE):
        if sum(part.strip().partition("=")[0] == name for part in text.split(";")) == 1:
            return cookie_parser(text).get(name) or None
    return None


def csrf_token(session: str) -> str:
    """Derived from the session id: a page that only makes the browser send the cookie cannot compute it."""
    return hash_secret(f"csrf:{session}")
