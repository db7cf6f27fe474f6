"""Creates and rotates API keys, and opens sessions. A secret exists only in the result; the store keeps its hash."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.domain.identity import (
    ID_ALPHABET,
    ID_LENGTH,
    LIFE_US_MAX,
    SECRET_ALPHABET,
    SECRET_LENGTH,
    SESSION_US,
    ApiKey,
    Caller,
    KeyRequest,
    Scope,
    Session,
    hash_secret,
    make_key,
    render_key_text,
    replacement_for,
)
from leaseway.domain.ids import SECOND_US
from leaseway.domain.validators import check_int
from leaseway.ports.store import Store

Chance = Callable[[str, int], str]
"""Makes a random text of a given alphabet and length that cannot be guessed."""
SESSION_LENGTH = 43


class MadeKey(NamedTuple):
    key: ApiKey
    text: str
    """The full key, including the secret. It is not stored."""


class OpenedSession(NamedTuple):
    session: Session
    id: str
    """The id for the browser's cookie. It is not stored."""


async def make(
    store: Store, wanted: KeyRequest, chance: Chance, maker: Caller | None = None, tenant_max: int | None = None
) -> MadeKey:
    """`maker`: the caller that creates the key. None: a process with direct access to the store.

    `tenant_max`: the quota of the tenant."""
    id_, secret = chance(ID_ALPHABET, ID_LENGTH), chance(SECRET_ALPHABET, SECRET_LENGTH)
    key = make_key(wanted, id_, secret, await store.reads.now())
    if maker is not None:
        refuse_beyond(maker, key, await store.keys.find(maker.name))
    await store.keys.add(key, tenant_max)
    return MadeKey(key, render_key_text(id_, secret))


async def rotate(
    store: Store,
    old: ApiKey,
    grace_us: int,
    chance: Chance,
    life_us: int | None = None,
    maker: Caller | None = None,
    tenant_max: int | None = None,
) -> MadeKey:
    """Create a new key; the old one stays valid for the grace period. The new key is stored before the old one's
    expiry, so that an interruption leaves one key too many, never one too few. It may exceed the quota by one."""
    check_int("grace", grace_us, 0, LIFE_US_MAX)
    now = await store.reads.now()
    if not old.is_live(now):
        raise BadValue("id", f"key {old.id} is revoked or has expired; create a new one instead")
    wanted, most = replacement_for(old), None if tenant_max is None else tenant_max + 1
    made = await make(store, wanted if life_us is None else replace(wanted, life_us=life_us), chance, maker, most)
    await store.keys.expire(old.id, now + grace_us)
    return made


async def begin_session(store: Store, key: ApiKey, chance: Chance) -> OpenedSession:
    now, id_ = await store.reads.now(), chance(SECRET_ALPHABET, SESSION_LENGTH)
    until = now + SESSION_US
    session = Session(
        hash=hash_secret(id_),
        key=key.id,
        created_at=now,
        expires_at=until if key.expires_at is None else min(until, key.expires_at),
    )
    await store.sessions.add(session)
    return OpenedSession(session, id_)


def refuse_beyond(maker: Caller, key: ApiKey, own: ApiKey | None) -> None:
    """A caller cannot give a key more rights than it has itself: neither scopes, nor tenants, nor time.

    `own`: the key of the caller. No operator has the scope `work`, so every operator can give it."""
    rights = maker.scopes | ({Scope.WORK} if maker.may(Scope.OPERATE) else set())
    beyond = sorted(set(key.scopes) - rights)
    if beyond:
        raise BadValue("scopes", f"this credential cannot give {', '.join(beyond)}, which it does not have itself")
    if not maker.sees(key.tenant):
        raise BadValue("tenant", f"this credential makes keys for tenant {maker.tenant} only")
    until = None if own is None else own.expires_at
    if until is not None and (key.expires_at is None or key.expires_at > until):
        seconds = max((until - key.created_at) // SECOND_US, 0)
        raise BadValue("expires_seconds", f"must be at most {seconds}, because this credential expires then itself")
