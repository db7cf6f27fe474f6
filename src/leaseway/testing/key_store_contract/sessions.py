"""Sessions: kept, ended, and never more than a few of one key."""

from leaseway.domain.api_key import SESSIONS_MAX
from leaseway.ports.store import Store
from leaseway.testing.clock import FakeClock
from leaseway.testing.key_store_contract.actors import new_session


async def test_a_session_is_kept_until_it_is_ended(key_store: Store, clock: FakeClock) -> None:
    """Who leaves a shared machine must be gone, everywhere."""
    one, two = new_session(1, clock), new_session(2, clock)
    for session in (one, two, one):
        await key_store.sessions.add(session)
    assert [await key_store.sessions.find(session.hash) for session in (one, two)] == [one, two]
    assert [await key_store.sessions.end(one.hash) for _ in range(2)] == [True, False]
    assert [await key_store.sessions.find(session.hash) for session in (one, two)] == [None, two]


async def test_a_key_keeps_its_newest_sessions(key_store: Store, clock: FakeClock) -> None:
    """A program that logs in for every request must not fill the store, nor end the sessions of others."""
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
    """Of all keys; those that are still good stay."""
    short = [new_session(number, clock, key=f"key{number:09}", seconds=10) for number in range(5)]
    long = new_session(9, clock, seconds=100)
    for session in (*short, long):
        await key_store.sessions.add(session)
    clock.advance(10)
    await key_store.sessions.add(new_session(10, clock))
    assert [await key_store.sessions.find(session.hash) for session in (*short, long)] == [None] * 5 + [long]
