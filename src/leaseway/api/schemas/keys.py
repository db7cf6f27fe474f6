"""API keys, sessions and tickets. Secrets and their hashes never appear, except once for a new key."""

from leaseway.api.schemas.values import Document, Timestamp, timestamp
from leaseway.domain.identity import ApiKey, Role, Scope
from leaseway.domain.ids import Instant


class KeyDocument(Document, kw_only=True):
    id: str
    name: str
    tenant: str
    role: Role
    scopes: list[Scope]
    state: str
    """live, expired or revoked"""
    created_at: Timestamp | None
    expires_at: Timestamp | None
    revoked_at: Timestamp | None
    used_at: Timestamp | None


class KeyMadeDocument(KeyDocument, kw_only=True):
    key: str
    """The key itself. This response is the only one that contains it."""


class TicketDocument(Document, kw_only=True):
    """For one WebSocket connection."""

    ticket: str
    expires_at: Timestamp | None


class IdentityDocument(Document, kw_only=True):
    """The caller and its rights."""

    name: str
    tenant: str
    role: Role
    scopes: list[Scope]
    until: Timestamp | None
    csrf_token: str | None
    """With a session cookie: send it in the x-csrf-token header of every request that changes something."""


def key_document(key: ApiKey, now: Instant) -> KeyDocument:
    return KeyDocument(
        id=key.id,
        name=key.name,
        tenant=key.tenant,
        role=key.role,
        scopes=list(key.scopes),
        state=key_state(key, now),
        created_at=timestamp(key.created_at),
        expires_at=timestamp(key.expires_at),
        revoked_at=timestamp(key.revoked_at),
        used_at=timestamp(key.used_at),
    )


def key_state(key: ApiKey, now: Instant) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "live" if key.is_live(now) else "expired"
