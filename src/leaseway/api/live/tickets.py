"""POST /v1/tickets ─► [a ticket] ─► GET /v1/live?ticket=…: used once, within a moment.

Browsers cannot send a header with a WebSocket, and a key in an address ends up in logs. A ticket may: it is good for
one use. It is kept where the sessions of browsers are, so that it can be used at any process, and at one of them only.
What it is kept under is no key's id, so that it can never be taken for a session.
"""

from collections.abc import Callable

import msgspec

from leaseway.domain.api_key import SECRET_ALPHABET, Session, hash_secret
from leaseway.domain.identity import Caller
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.ports.store import Store

TICKET_US = 30 * SECOND_US
LENGTH = 32
MARK = "ticket:"

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Caller).decode


async def make_ticket(store: Store, caller: Caller, random_text: Callable[[str, int], str]) -> tuple[str, Instant]:
    ticket, now = random_text(SECRET_ALPHABET, LENGTH), await store.reads.now()
    until = min(now + TICKET_US, caller.until or now + TICKET_US)
    session = Session(hash=hash_in(ticket), key=MARK + _encode(caller).decode(), created_at=now, expires_at=until)
    await store.sessions.add(session)
    return ticket, until


async def use_ticket(store: Store, ticket: str) -> Caller | None:
    """Who made it. None: there is none, or somebody has used it."""
    if len(ticket) != LENGTH or not (ticket.isascii() and ticket.isalnum()):
        return None
    found = await store.sessions.find(hash_in(ticket))
    if found is None or not found.key.startswith(MARK) or found.expires_at <= await store.reads.now():
        return None
    # Of several who come at once, the store lets one end it.
    if not await store.sessions.end(found.hash):
        return None
    return _decode(found.key.removeprefix(MARK).encode())


def hash_in(ticket: str) -> str:
    return hash_secret(MARK + ticket)
