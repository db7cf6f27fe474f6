"""The authenticator: which credentials are accepted, for how long, and what an invalid credential reveals."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
from starlette.datastructures import Headers
from tests.api.keys import bearer, key_for, operator_of
from tests.api.running_service import Served

from leaseway.api.auth.authentication import TOUCH_SECONDS, TTL_SECONDS, Authenticator
from leaseway.api.errors import Problem
from leaseway.api.ttl_cache import TtlCache
from leaseway.domain.errors import StoreBusy
from leaseway.domain.identity import ApiKey, KeyRequest, Role, Scope
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.stores.memory.keys import MemoryKeys
from leaseway.stores.memory.store import MemoryStore
from leaseway.system import random_text
from leaseway.testing.clock import FakeClock
from leaseway.worker.api_keys import MadeKey, begin_session, make


class Town(FakeClock):
    """One clock for store and process, and a store that counts its queries."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(self.now_us)
        self.keys = self.store.keys = CountingKeys(self.store.state)
        self.authenticator = Authenticator(self.store, self)

    def monotonic(self) -> float:
        return self.now_us() / SECOND_US

    def wall_us(self) -> int:
        return self.now_us()

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    async def key(self, **wanted: object) -> MadeKey:
        return await make(self.store, KeyRequest(**{"tenant": "acme"} | wanted), random_text)  # type: ignore[arg-type]

    async def opens(self, text: str) -> bool:
        try:
            return await self.authenticator.caller(Headers({"authorization": f"Bearer {text}"})) is not None
        except Problem as problem:
            return problem.status != 401


class CountingKeys(MemoryKeys):
    looks = 0
    is_busy = False

    async def find(self, id: str) -> ApiKey | None:
        self.looks += 1
        await asyncio.sleep(0)
        return await super().find(id)

    async def touch(self, used: Mapping[str, Instant]) -> None:
        if self.is_busy:
            raise StoreBusy("not now")
        await super().touch(used)


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    town = Town()
    yield town
    await town.authenticator.close()


# -- wrong credentials ------------------------------------------------------------------------------------------------


async def test_every_wrong_credential_gets_the_same_answer(served_with_keys: Served) -> None:
    """An attacker must not learn whether an id exists or whether a key was once valid."""
    served = served_with_keys
    good, revoked = await key_for(served), await key_for(served)
    await served.service.world.store.keys.revoke(revoked.key.id)
    expired = await key_for(served, life_us=1)
    wrong = [
        f"lw_{good.key.id}_{'A' * 27}",
        f"lw_{'a' * 12}_{'A' * 27}",
        revoked.text,
        expired.text,
        good.text + "A",
        good.text[:-1],
        good.text.upper(),
        "lw_",
        "a.b.c",
        "null",
        "\u00e9",
    ]
    answers = [
        await served.client.get("/v1/session", headers=[(b"authorization", f"Bearer {each}".encode())])
        for each in wrong
    ]
    for answer in answers:
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer ")
    bodies = [{**answer.json(), "request_id": ""} for answer in answers]
    assert all(body == bodies[0] for body in bodies)
    assert (await served.client.get("/v1/session", headers=bearer(good))).status_code == 200


async def test_a_request_has_one_credential_and_one_way_to_bring_it(served_with_keys: Served) -> None:
    """With two credentials, two components could authenticate the request differently."""
    served, made = served_with_keys, await key_for(served_with_keys)
    other = await key_for(served, "other")
    for headers in (
        [("authorization", f"Bearer {made.text}"), ("authorization", f"Bearer {other.text}")],
        [("authorization", f"Basic {made.text}")],
        [("authorization", made.text)],
        [("authorization", f"Bearer  {made.text}")],
        [("authorization", f"Bearer {made.text}, Bearer {other.text}")],
    ):
        assert (await served.client.get("/v1/session", headers=headers)).status_code == 401
    for url in (f"/v1/session?key={made.text}", f"/v1/session?access_token={made.text}"):
        assert (await served.client.get(url)).status_code == 401
    assert (await served.client.get("/v1/session", headers={"authorization": f"bearer {made.text}"})).status_code == 200


async def test_a_key_may_have_less_than_its_role(served_with_keys: Served) -> None:
    """A key with few scopes limits the damage when it leaks."""
    served = served_with_keys
    reader = await key_for(served, scopes=(Scope.JOBS_READ,))
    assert (await served.client.get("/v1/jobs", headers=bearer(reader))).status_code == 200
    refused = await served.client.post("/v1/jobs", headers=bearer(reader), json={"kind": "add", "arguments": {"a": 1}})
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
    assert "jobs:write" in refused.json()["detail"]
    worker = await key_for(served, None, Role.WORKER)
    assert (await served.client.get("/v1/jobs", headers=bearer(worker))).status_code == 403


async def test_a_service_with_authentication_that_was_not_opened_lets_nobody_in(served_with_keys: Served) -> None:
    """A service whose authenticator has not started must not treat every caller as the local owner."""
    served = served_with_keys
    authenticator, served.service.authenticator = served.service.authenticator, None
    try:
        assert (await served.client.get("/v1/jobs")).status_code == 401
    finally:
        served.service.authenticator = authenticator


# -- time -------------------------------------------------------------------------------------------------------------


async def test_a_key_ends_at_its_instant_although_it_is_remembered(town: Town) -> None:
    """A cached key must not outlive its expiry. The expiry is compared with the store's clock, extrapolated between two
    queries.
    """
    made = await town.key(life_us=10 * SECOND_US)
    assert await town.opens(made.text)
    town.advance(9.9)
    assert await town.opens(made.text)
    town.advance(0.1)
    assert not await town.opens(made.text)


async def test_a_revocation_elsewhere_is_felt_within_a_minute(town: Town) -> None:
    """Another process revoked the key, so this process may use its cached entry for a short time only."""
    made = await town.key()
    assert await town.opens(made.text)
    await town.store.keys.revoke(made.key.id)
    assert TTL_SECONDS <= 60
    town.advance(TTL_SECONDS)
    assert not await town.opens(made.text)


async def test_a_revocation_here_is_felt_at_once(town: Town) -> None:
    """A leaked key must not stay valid for the lifetime of a cache entry."""
    made = await town.key()
    assert await town.opens(made.text)
    await town.store.keys.revoke(made.key.id)
    town.authenticator.invalidate_key(made.key.id)
    assert not await town.opens(made.text)


async def test_the_store_is_asked_once_for_many_requests(town: Town) -> None:
    """Two thousand requests per second must not cause two thousand store queries, for valid and for invented ids."""
    made = await town.key()
    assert await asyncio.gather(*(town.opens(made.text) for _ in range(100))) == [True] * 100
    assert town.keys.looks == 1
    unknown = f"lw_{'x' * 12}_{'A' * 27}"
    assert await asyncio.gather(*(town.opens(unknown) for _ in range(100))) == [False] * 100
    assert town.keys.looks == 2


async def test_made_up_ids_neither_fill_the_memory_nor_push_out_what_is_used() -> None:
    """Otherwise any client could evict all cached keys and force a store query for every request."""
    asked: list[str] = []

    async def ask(name: str) -> str | None:
        asked.append(name)
        return name if name.startswith("real") else None

    cache = TtlCache[str](ask, Town(), ttl_seconds=30, negative_ttl_seconds=5, max_entries=3)
    await cache.get("real")
    for number in range(50):
        assert await cache.get(f"made up {number}") is None
    assert await cache.get("real") == "real"
    assert asked.count("real") == 1
    assert len(cache._missing) == 3
    for number in range(50):
        await cache.get(f"real {number}")
    assert len(cache._present) == 3


async def test_what_was_asked_before_a_change_is_not_believed_after_it() -> None:
    """A query that started before the key was revoked returns a stale result, which must not be cached."""
    gate, answers = asyncio.Event(), ["live", "revoked"]

    async def ask(name: str) -> str | None:
        answer = answers.pop(0)
        await gate.wait()
        return answer

    cache = TtlCache[str](ask, Town(), ttl_seconds=30, negative_ttl_seconds=5, max_entries=3)
    async with asyncio.TaskGroup() as group:
        group.create_task(cache.get("key"))
        await asyncio.sleep(0)
        cache.invalidate("key")
        gate.set()
    assert await cache.get("key") == "revoked"


# -- the last use -----------------------------------------------------------------------------------------------------


async def test_the_last_use_is_written_now_and_then(town: Town) -> None:
    """Operators need to know which keys are unused, but a request must not pay for a write."""
    made = await town.key()
    await town.opens(made.text)
    await asyncio.sleep(0)
    first = town.now_us()
    assert (await town.store.keys.all())[0].used_at == first
    town.advance(1)
    await town.opens(made.text)
    await asyncio.sleep(0)
    assert (await town.store.keys.all())[0].used_at == first
    town.advance(TOUCH_SECONDS)
    await town.opens(made.text)
    town.advance(1)
    await town.opens(made.text)
    await town.authenticator.close()
    assert (await town.store.keys.all())[0].used_at == town.now_us()


async def test_a_last_use_that_cannot_be_written_stops_nobody(town: Town) -> None:
    """A busy store must not lock callers out because of a statistic."""
    made = await town.key()
    town.keys.is_busy = True
    assert await town.opens(made.text)
    await town.authenticator.close()
    town.keys.is_busy = False
    await town.authenticator.close()
    assert (await town.store.keys.all())[0].used_at == town.now_us()


# -- sessions ---------------------------------------------------------------------------------------------------------


async def test_a_browser_gets_a_cookie_that_no_script_can_read(served_with_keys: Served) -> None:
    """A script that runs in the page must not be able to steal the session, and the page does not keep the key after
    login.
    """
    served, made = served_with_keys, await key_for(served_with_keys)
    answer = await served.client.post("/v1/session", json={"key": made.text})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"].lower()
    for word in ("httponly", "samesite=strict", "path=/", "max-age=43200"):
        assert word in cookie
    assert "domain" not in cookie
    assert made.text not in answer.text + cookie
    who = (await served.client.get("/v1/session")).json()
    assert (who["name"], who["tenant"], who["role"]) == (made.key.id, "acme", "tenant")
    assert who["csrf_token"] == answer.json()["csrf_token"]
    assert (await served.client.get("/v1/jobs")).status_code == 200


async def test_behind_tls_the_cookie_never_travels_in_the_clear(served_with_keys: Served) -> None:
    """The proxy forwards plain HTTP, so only the browser's Origin header shows that the client used TLS."""
    served, made = served_with_keys, await key_for(served_with_keys)
    origin = {"Origin": served.url.replace("http://", "https://")}
    answer = await served.client.post("/v1/session", json={"key": made.text}, headers=origin)
    assert answer.headers["set-cookie"].startswith("__Host-leaseway_session=")
    assert "secure" in answer.headers["set-cookie"].lower()


async def test_a_cookie_alone_changes_nothing(served_with_keys: Served) -> None:
    """If SameSite fails, browsers send the cookie with requests from foreign pages, but such a page does not know the
    CSRF token.
    """
    served, made = served_with_keys, await operator_of(served_with_keys)
    token = (await served.client.post("/v1/session", json={"key": made.text})).json()["csrf_token"]
    body = {"tenant": "acme"}
    for headers in ({}, {"X-CSRF-Token": "0" * 64}, {"X-CSRF-Token": ""}):
        refused = await served.client.post("/v1/keys", json=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "csrf")
    for method in ("DELETE", "PUT", "PATCH", "POST"):
        assert (await served.client.request(method, "/v1/session")).status_code == 403
    assert (await served.client.post("/v1/keys", json=body, headers={"X-CSRF-Token": token})).status_code == 201


async def test_who_leaves_is_gone(served_with_keys: Served) -> None:
    """A copied cookie must be useless after logout, and a second logout must not fail."""
    served, made = served_with_keys, await key_for(served_with_keys)
    begun = await served.client.post("/v1/session", json={"key": made.text})
    cookie = {"Cookie": begun.headers["set-cookie"].partition(";")[0]}
    left = await served.client.delete("/v1/session", headers={"X-CSRF-Token": begun.json()["csrf_token"]})
    assert left.status_code == 204
    assert "leaseway_session" not in served.client.cookies
    assert (await served.client.get("/v1/session", headers=cookie)).status_code == 401
    assert (await served.client.delete("/v1/session", headers=cookie)).status_code == 204


async def test_with_a_cookie_that_is_over_one_can_log_in_again(served_with_keys: Served) -> None:
    """If an expired cookie were refused as an error, the user could not even open the login page."""
    served, made = served_with_keys, await key_for(served_with_keys)
    served.client.cookies.set("leaseway_session", "A" * 43)
    assert (await served.client.get("/healthz")).status_code == 200
    assert (await served.client.post("/v1/session", json={"key": made.text})).status_code == 200


async def test_a_session_ends_with_its_time_and_with_its_key(town: Town) -> None:
    """Whichever ends first, a stream that was opened with the session must end with it."""

    async def caller_of(session: str) -> object:
        return await town.authenticator.caller(Headers({"cookie": f"leaseway_session={session}"}))

    lasting, short = await town.key(), await town.key(life_us=60 * SECOND_US)
    of_lasting = await begin_session(town.store, lasting.key, random_text)
    of_short = await begin_session(town.store, short.key, random_text)
    caller = await town.authenticator.caller(Headers({"cookie": f"leaseway_session={of_lasting.id}"}))
    assert caller is not None
    assert caller.until == town.now_us() + 12 * 3_600 * SECOND_US
    assert of_short.session.expires_at == short.key.expires_at
    town.advance(60)
    assert await caller_of(of_short.id) is None
    await town.store.keys.revoke(lasting.key.id)
    town.advance(TTL_SECONDS)
    assert await caller_of(of_lasting.id) is None
    other = await town.key()
    of_other = await begin_session(town.store, other.key, random_text)
    assert await caller_of(of_other.id) is not None
    town.advance(12 * 3_600)
    assert await caller_of(of_other.id) is None


async def test_of_two_cookies_with_one_name_none_is_believed(town: Town) -> None:
    """Another service on the same host can set a cookie with the same name, and browsers send both."""
    made = await town.key()
    opened = await begin_session(town.store, made.key, random_text)
    for cookie in (
        f"leaseway_session={opened.id}; leaseway_session=B",
        f"leaseway_session=B; leaseway_session={opened.id}",
    ):
        assert await town.authenticator.caller(Headers({"cookie": cookie})) is None


async def test_a_wrong_key_begins_no_session(served_with_keys: Served) -> None:
    """A cookie for a wrong key would bypass authentication."""
    served = served_with_keys
    for body in ({"key": f"lw_{'a' * 12}_{'A' * 27}"}, {"key": ""}, {"key": "a.b.c"}):
        answer = await served.client.post("/v1/session", json=body)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
    assert (await served.client.post("/v1/session", json={})).status_code == 422
    assert (await served.client.post("/v1/session", json={"key": 1})).status_code == 422


async def test_without_authentication_nobody_has_to_log_in(served: Served) -> None:
    """On a developer's machine, a login page without any key would be a dead end."""
    who = (await served.client.get("/v1/session")).json()
    assert (who["name"], who["role"], who["csrf_token"]) == ("local", "operator", None)
    assert (await served.client.post("/v1/session", json={"key": "x"})).json()["code"] == "no_authentication"


async def test_a_value_that_takes_long_to_load_is_used_for_longer() -> None:
    """The share of the time that loading takes is bounded, whatever one load takes."""
    clock, loads = Town(), 0

    async def load(_: str) -> int:
        nonlocal loads
        loads += 1
        clock.advance(3)
        return loads

    cache = TtlCache[int](load, clock, ttl_seconds=1, negative_ttl_seconds=1, max_entries=1, load_share_max=0.1)
    assert await cache.get("") == 1
    clock.advance(26)
    assert await cache.get("") == 1
    clock.advance(2)
    assert await cache.get("") == 2
