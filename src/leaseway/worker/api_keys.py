"""wanted ─► key ─► store: the only moment at which a key's secret exists is the answer to whoever wanted it."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from leaseway.domain.api_key import (
    ID_ALPHABET,
    ID_LENGTH,
    LIFE_US_MAX,
    SECRET_ALPHABET,
    SECRET_LENGTH,
    SESSION_US,
    ApiKey,
    KeyRequest,
    Session,
    hash_secret,
    make_key,
    render_key_text,
    replacement_for,
)
from leaseway.domain.errors import BadValue
from leaseway.domain.identity import Caller, Scope
from leaseway.domain.validators import check_int
from leaseway.ports.store import Store

Chance = Callable[[str, int], str]
"""Text of so many letters of an alphabet that nobody can guess."""
SESSION_LENGTH = 43


class MadeKey(NamedTuple):
    key: ApiKey
    text: str
    """What its owner must keep. It is nowhere else."""


class OpenedSession(NamedTuple):
    session: Session
    id: str
    """What the browser keeps. It is nowhere else."""


async def make(store: Store, wanted: KeyRequest, chance: Chance, maker: Caller | None = None) -> MadeKey:
    """`maker`: on whose behalf. None: whoever can write to the store itself."""
    id_, secret = chance(ID_ALPHABET, ID_LENGTH), chance(SECRET_ALPHABET, SECRET_LENGTH)
    key = make_key(wanted, id_, secret, await store.reads.now())
    if maker is not None:
        refuse_beyond(maker, key)
    await store.keys.add(key)
    return MadeKey(key, render_key_text(id_, secret))


async def rotate(
    store: Store,
    old: ApiKey,
    grace_us: int,
    chance: Chance,
    life_us: int | None = None,
    maker: Caller | None = None,
) -> MadeKey:
    """A new key beside the old one, which lives on for a while. The new one is there before the old one's end is set:
    if we are interrupted, there is one key too many, and never one too few."""
    check_int("grace", grace_us, 0, LIFE_US_MAX)
    now = await store.reads.now()
    if not old.is_live(now):
        raise BadValue("id", f"key {old.id} is revoked or has expired; create a new one instead")
    wanted = replacement_for(old)
    made = await make(store, wanted if life_us is None else replace(wanted, life_us=life_us), chance, maker)
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


def refuse_beyond(maker: Caller, key: ApiKey) -> None:
    """Nobody gives what he does not have, except the right to work, which no operator has himself."""
    beyond = sorted(set(key.scopes) - maker.scopes - {Scope.WORK})
    if beyond:
        raise BadValue("scopes", f"this credential cannot give {', '.join(beyond)}, which it does not have itself")
    if not maker.sees(key.tenant):
        raise BadValue("tenant", f"this credential makes keys for tenant {maker.tenant} only")
