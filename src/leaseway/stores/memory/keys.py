"""API keys and browser sessions in memory: the rules that the other stores follow."""

from collections.abc import Mapping

from msgspec.structs import replace

from leaseway.domain.identity import FORGET_MAX, FORGET_US, SESSIONS_MAX, ApiKey, Session
from leaseway.domain.ids import Instant
from leaseway.domain.quota import Quota, exceeded
from leaseway.ports.key_store import KEYS_MAX
from leaseway.stores.keys import key_id_taken, too_many_keys
from leaseway.stores.memory.state import MemoryState


def is_forgettable(key: ApiKey, before: Instant) -> bool:
    return any(at is not None and at <= before for at in (key.expires_at, key.revoked_at))


class MemoryKeys:
    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self._keys: dict[str, ApiKey] = {}

    async def add(self, key: ApiKey, tenant_max: int | None = None) -> None:
        with self._state.lock:
            present = self._keys.get(key.id)
            if present is not None:
                if present.hash != key.hash:
                    raise key_id_taken(key.id)
                return
            before = self._state.now_us() - FORGET_US
            for old in [old for old in self._keys.values() if is_forgettable(old, before)][:FORGET_MAX]:
                del self._keys[old.id]
            if tenant_max is not None:
                self._make_room(key.tenant, tenant_max)
            if len(self._keys) >= KEYS_MAX:
                raise too_many_keys()
            self._keys[key.id] = key

    def _make_room(self, tenant: str, most: int) -> None:
        now = self._state.now_us()
        own = sorted(
            (key for key in self._keys.values() if key.tenant == tenant), key=lambda key: (key.created_at, key.id)
        )
        live, dead = [key for key in own if key.is_live(now)], [key for key in own if not key.is_live(now)]
        if len(live) >= most:
            raise exceeded(tenant, Quota.KEYS, most, len(live), 1)
        for old in dead[: max(len(dead) - most, 0)]:
            del self._keys[old.id]

    async def find(self, id: str) -> ApiKey | None:
        return self._keys.get(id)

    async def all(self, tenant: str | None = None) -> list[ApiKey]:
        with self._state.lock:
            found = [key for key in self._keys.values() if tenant in (None, key.tenant)]
        return sorted(found, key=lambda key: key.id)[:KEYS_MAX]

    async def revoke(self, id: str) -> bool:
        with self._state.lock:
            key = self._keys.get(id)
            if key is None or key.revoked_at is not None:
                return False
            self._keys[id] = replace(key, revoked_at=self._state.now_us())
            return True

    async def expire(self, id: str, at: Instant) -> bool:
        with self._state.lock:
            key = self._keys.get(id)
            if key is None:
                return False
            self._keys[id] = replace(key, expires_at=at if key.expires_at is None else min(at, key.expires_at))
            return True

    async def touch(self, used: Mapping[str, Instant]) -> None:
        with self._state.lock:
            for id_, at in used.items():
                key = self._keys.get(id_)
                if key is not None:
                    self._keys[id_] = replace(key, used_at=max(at, key.used_at or at))


class MemorySessions:
    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self._sessions: dict[str, Session] = {}

    async def add(self, session: Session) -> None:
        with self._state.lock:
            self._sessions.setdefault(session.hash, session)
            now = self._state.now_us()
            old = [each for each in self._sessions.values() if each.expires_at <= now][:FORGET_MAX]
            of_key = [each for each in self._sessions.values() if each.key == session.key and each != session]
            of_key.sort(key=lambda each: (each.created_at, each.hash), reverse=True)
            for each in {each.hash for each in [*old, *of_key[SESSIONS_MAX - 1 :]]}:
                del self._sessions[each]

    async def find(self, hash: str) -> Session | None:
        return self._sessions.get(hash)

    async def end(self, hash: str) -> bool:
        with self._state.lock:
            return self._sessions.pop(hash, None) is not None
