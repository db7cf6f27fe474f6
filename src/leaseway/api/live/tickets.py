"""POST /v1/tickets ─► [ticket] ─► GET /v1/live?ticket=…: valid once, for a short time.

Browsers cannot send an Authorization header with a WebSocket, and an API key in a URL would end up in logs. A ticket is
harmless there, because it can be used only once. Tickets are stored with the sessions of browsers, so that every
process accepts them and only one of them succeeds. Their owner is not the id of a key, so a ticket is never mistaken
for a session.
"""

from collections.abc import Callable

import msgspec

from leaseway.domain.api_key import SECRET_ALPHABET, Session, hash_secret
from leaseway.domain.identity import Caller
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.ports.store import Store

TICKET_US = 30 * SECOND_US
LENGTH = 32
PREFIX = "ticket:"

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Caller).decode


async def make_ticket(store: Store, caller: Caller, random_text: Callable[[str, int], str]) -> tuple[str, Instant]:
    ticket, now = random_text(SECRET_ALPHABET, LENGTH), await store.reads.now()
    until = min(now + TICKET_US, caller.until or now + TICKET_US)
    session = Session(hash=hash_ticket(ticket), key=PREFIX + _encode(caller).decode(), created_at=now, expires_at=until)
    await store.sessions.add(session)
    return ticket, until


async def use_ticket(store: Store, ticket: str) -> Caller | None:
    """The caller that made the ticket. None: it does not exist, has expired, or was used."""
    if len(ticket) != LENGTH or not (ticket.isascii() and ticket.isalnum()):
        return None
    found = await store.sessions.find(hash_ticket(ticket))
    if found is None or not found.key.startswith(PREFIX) or found.expires_at <= await store.reads.now():
        return None
    # If several requests use a ticket at the same time, the store lets one of them end the session.
    if not await store.sessions.end(found.hash):
        return None
    return _decode(found.key.removeprefix(PREFIX).encode())


def hash_ticket(ticket: str) -> str:
    return hash_secret(PREFIX + ticket)
