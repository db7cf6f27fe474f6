"""Keys and sessions in memory: the rules that the other stores follow."""

from collections.abc import Callable, Mapping
from threading import RLock

from msgspec.structs import replace

from leaseway.domain.api_key import FORGET_MAX, FORGET_US, SESSIONS_MAX, ApiKey, Session
from leaseway.domain.ids import Instant
from leaseway.ports.key_store import KEYS_MAX
from leaseway.stores.key_rows import taken, too_many


def is_long_dead(key: ApiKey, before: Instant) -> bool:
    return any(at is not None and at <= before for at in (key.expires_at, key.revoked_at))


class MemoryKeys:
    """Nothing in a verb awaits, so a lock may be held around it."""

    def __init__(self, lock: RLock, now_us: Callable[[], Instant]) -> None:
        self._keys_lock = lock
        self._keys_now = now_us
        self._api_keys: dict[str, ApiKey] = {}
        self._sessions: dict[str, Session] = {}

    async def add_key(self, key: ApiKey) -> None:
        with self._keys_lock:
            present = self._api_keys.get(key.id)
            if present is not None:
                if present.hash != key.hash:
                    raise taken(key.id)
                return
            before = self._keys_now() - FORGET_US
            for old in [old for old in self._api_keys.values() if is_long_dead(old, before)][:FORGET_MAX]:
                del self._api_keys[old.id]
            if len(self._api_keys) >= KEYS_MAX:
                raise too_many()
            self._api_keys[key.id] = key

    async def key(self, id: str) -> ApiKey | None:
        return self._api_keys.get(id)

    async def keys(self, tenant: str | None = None) -> list[ApiKey]:
        with self._keys_lock:
            found = [key for key in self._api_keys.values() if tenant in (None, key.tenant)]
        return sorted(found, key=lambda key: key.id)[:KEYS_MAX]

    async def revoke_key(self, id: str) -> bool:
        with self._keys_lock:
            key = self._api_keys.get(id)
            if key is None or key.revoked_at is not None:
                return False
            self._api_keys[id] = replace(key, revoked_at=self._keys_now())
            return True

    async def expire_key(self, id: str, at: Instant) -> bool:
        with self._keys_lock:
            key = self._api_keys.get(id)
            if key is None:
                return False
            self._api_keys[id] = replace(key, expires_at=at if key.expires_at is None else min(at, key.expires_at))
            return True

    async def touch_keys(self, used: Mapping[str, Instant]) -> None:
        with self._keys_lock:
            for id_, at in used.items():
                key = self._api_keys.get(id_)
                if key is not None:
                    self._api_keys[id_] = replace(key, used_at=max(at, key.used_at or at))

    async def add_session(self, session: Session) -> None:
        with self._keys_lock:
            self._sessions.setdefault(session.hash, session)
            now = self._keys_now()
            old = [each for each in self._sessions.values() if each.expires_at <= now][:FORGET_MAX]
            of_key = [each for each in self._sessions.values() if each.key == session.key and each != session]
            of_key.sort(key=lambda each: (each.created_at, each.hash), reverse=True)
            for each in {each.hash for each in [*old, *of_key[SESSIONS_MAX - 1 :]]}:
                del self._sessions[each]

    async def session(self, hash: str) -> Session | None:
        return self._sessions.get(hash)

    async def end_session(self, hash: str) -> bool:
        with self._keys_lock:
            return self._sessions.pop(hash, None) is not None
