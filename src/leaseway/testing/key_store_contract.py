"""API keys: stored unchanged, ended in time, and never restored."""

from typing import Any

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import BadValue, QuotaExceeded
from leaseway.domain.identity import FORGET_US, SESSIONS_MAX, ApiKey, Role, Scope, Session, hash_secret
from leaseway.domain.ids import SECOND_US
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock


def new_key(number: int, clock: FakeClock, **given: Any) -> ApiKey:
    fields: dict[str, Any] = {
        "id": f"key{number:09}",
        "hash": hash_secret(f"secret {number}"),
        "tenant": "acme",
        "role": Role.TENANT,
        "scopes": (Scope.JOBS_READ, Scope.JOBS_WRITE),
        "name": 'shop’s "own" key',
        "created_at": clock.now_us(),
    }
    return ApiKey(**fields | given)


def new_session(number: int, clock: FakeClock, *, key: str = "key000000001", seconds: int = 3_600) -> Session:
    now = clock.now_us()
    return Session(hash=hash_secret(f"session {number}"), key=key, created_at=now, expires_at=now + seconds * 1_000_000)


async def test_a_key_is_kept_as_it_was_given(key_store: Store, clock: FakeClock) -> None:
    """Changed rights would be a security hole or lock the caller out."""
    plain = new_key(1, clock)
    full = new_key(
        2, clock, tenant="*", role=Role.WORKER, scopes=(Scope.WORK,), name="", expires_at=clock.now_us() + 5, used_at=7
    )
    for key in (full, plain):
        await key_store.keys.add(key)
    assert [await key_store.keys.find(key.id) for key in (plain, full)] == [plain, full]
    assert await key_store.keys.find("key000000003") is None
    assert await key_store.keys.all() == [plain, full]
    assert [await key_store.keys.all(tenant) for tenant in ("acme", "*", "other")] == [[plain], [full], []]


async def test_adding_a_key_again_changes_nothing(key_store: Store, clock: FakeClock) -> None:
    """The reply may be lost. Later changes of the key must stay, above all its revocation."""
    key = new_key(1, clock)
    await key_store.keys.add(key)
    await key_store.keys.revoke(key.id)
    await key_store.keys.add(key)
    found = await key_store.keys.find(key.id)
    assert found is not None
    assert found.revoked_at == clock.now_us()


async def test_an_id_that_is_taken_is_refused(key_store: Store, clock: FakeClock) -> None:
    """Otherwise a caller that adds a key could take over another one."""
    key = new_key(1, clock)
    await key_store.keys.add(key)
    with pytest.raises(BadValue, match="another key has the id"):
        await key_store.keys.add(replace(key, hash=hash_secret("mine"), role=Role.OPERATOR))
    assert await key_store.keys.find(key.id) == key


async def test_a_key_is_revoked_once(key_store: Store, clock: FakeClock) -> None:
    """The store's clock decides, and the first instant must stay."""
    key = new_key(1, clock)
    await key_store.keys.add(key)
    clock.advance(5)
    revoked_at = clock.now_us()
    assert await key_store.keys.revoke(key.id) is True
    clock.advance(5)
    assert [await key_store.keys.revoke(id_) for id_ in (key.id, "key000000002")] == [False, False]
    assert await key_store.keys.find(key.id) == replace(key, revoked_at=revoked_at)


async def test_the_end_of_a_key_only_comes_nearer(key_store: Store, clock: FakeClock) -> None:
    """Rotating a key that ends tomorrow must not keep it valid for a week."""
    now, key = clock.now_us(), new_key(1, clock)
    await key_store.keys.add(key)
    ends = []
    for at in (now + 100, now + 200, now + 50):
        assert await key_store.keys.expire(key.id, at) is True
        found = await key_store.keys.find(key.id)
        assert found is not None
        ends.append(found.expires_at)
    assert ends == [now + 100, now + 100, now + 50]
    assert await key_store.keys.expire("key000000002", now) is False


async def test_the_last_use_only_moves_on(key_store: Store, clock: FakeClock) -> None:
    """Processes write in batches, and one may be late. Deleted keys must not cause an error."""
    one, two = new_key(1, clock), new_key(2, clock)
    for key in (one, two):
        await key_store.keys.add(key)
    await key_store.keys.touch({"key000000009": 1, two.id: 20, one.id: 10})
    await key_store.keys.touch({one.id: 5, two.id: 30})
    await key_store.keys.touch({})
    assert [key.used_at for key in await key_store.keys.all()] == [10, 30]


async def test_long_dead_keys_are_forgotten_when_new_ones_come(key_store: Store, clock: FakeClock) -> None:
    """Old keys must not accumulate, but an operator must see them for some months."""
    now = clock.now_us()
    expired, revoked = new_key(1, clock, expires_at=now + SECOND_US), new_key(2, clock)
    living, later = new_key(3, clock), new_key(4, clock, expires_at=now + 2 * FORGET_US)
    for key in (expired, revoked, living, later):
        await key_store.keys.add(key)
    await key_store.keys.revoke(revoked.id)
    clock.advance_us(FORGET_US - 1)
    await key_store.keys.add(new_key(5, clock))
    assert len(await key_store.keys.all()) == 5
    clock.advance_us(2 * SECOND_US)
    await key_store.keys.add(new_key(6, clock))
    assert [key.id for key in await key_store.keys.all()] == [new_key(n, clock).id for n in (3, 4, 5, 6)]


async def test_a_session_is_kept_until_it_is_ended(key_store: Store, clock: FakeClock) -> None:
    """After logout on a shared machine, the session must be invalid everywhere."""
    one, two = new_session(1, clock), new_session(2, clock)
    for session in (one, two, one):
        await key_store.sessions.add(session)
    assert [await key_store.sessions.find(session.hash) for session in (one, two)] == [one, two]
    assert [await key_store.sessions.end(one.hash) for _ in range(2)] == [True, False]
    assert [await key_store.sessions.find(session.hash) for session in (one, two)] == [None, two]


async def test_a_key_keeps_its_newest_sessions(key_store: Store, clock: FakeClock) -> None:
    """A program that logs in for every request must neither fill the store nor end the sessions of others."""
    other = new_session(0, clock, key="key000000002")
    await key_store.sessions.add(other)
    sessions = []
    for number in range(1, SESSIONS_MAX + 3):
        clock.advance(1)
        sessions.append(new_session(number, clock))
        await key_store.sessions.add(sessions[-1])
    found = [await key_store.sessions.find(session.hash) for session in sessions]
    assert found == [None, None, *sessions[2:]]
    assert await key_store.sessions.find(other.hash) == other


async def test_expired_sessions_are_forgotten_when_new_ones_come(key_store: Store, clock: FakeClock) -> None:
    """Expired sessions of all keys are deleted, and valid ones stay."""
    short = [new_session(number, clock, key=f"key{number:09}", seconds=10) for number in range(5)]
    long = new_session(9, clock, seconds=100)
    for session in (*short, long):
        await key_store.sessions.add(session)
    clock.advance(10)
    await key_store.sessions.add(new_session(10, clock))
    assert [await key_store.sessions.find(session.hash) for session in (*short, long)] == [None] * 5 + [long]


async def test_a_tenant_has_a_bounded_number_of_keys(key_store: Store, clock: FakeClock) -> None:
    """One tenant must not use up the keys that the store keeps for all. Expired and revoked keys make room."""
    expiring = new_key(1, clock, expires_at=clock.now_us() + SECOND_US)
    await key_store.keys.add(expiring, 2)
    await key_store.keys.add(new_key(2, clock), 2)
    with pytest.raises(QuotaExceeded, match="tenant acme has 2 live API keys, and its quota is 2"):
        await key_store.keys.add(new_key(3, clock), 2)
    await key_store.keys.add(expiring, 2)  # a repetition needs no room
    await key_store.keys.add(new_key(4, clock, tenant="globex"), 2)
    clock.advance(1)
    await key_store.keys.add(new_key(5, clock), 2)
    await key_store.keys.revoke("key000000002")
    await key_store.keys.add(new_key(6, clock), 2)
    assert [key.id[-1] for key in await key_store.keys.all("acme")] == ["1", "2", "5", "6"]


async def test_old_keys_of_a_tenant_are_forgotten_before_others(key_store: Store, clock: FakeClock) -> None:
    """A tenant that creates and revokes keys all day must not fill the store with them."""
    for number in range(1, 7):
        clock.advance(1)
        await key_store.keys.add(new_key(number, clock), 2)
        await key_store.keys.revoke(f"key{number:09}")
    await key_store.keys.add(new_key(7, clock), 2)
    assert [key.id[-1] for key in await key_store.keys.all("acme")] == ["5", "6", "7"]
