"""The credentials of subscribers: tickets for WebSockets, and checks while a stream lasts.

POST /v1/tickets ─► [ticket] ─► GET /v1/live?ticket=…

Browsers cannot send an Authorization header with a WebSocket, and an API key in a URL would end up in logs. A ticket is
harmless there, because it is valid once and for a short time. Tickets are stored with the sessions of browsers, so that
every process accepts them and only one of them succeeds. Their owner is not the id of a key, so a ticket is never
mistaken for a session.
"""

from collections.abc import Callable

import msgspec
from starlette.datastructures import Headers

from leaseway.api.errors import Problem
from leaseway.api.live.hub import LiveService
from leaseway.domain.errors import LeasewayError
from leaseway.domain.identity import SECRET_ALPHABET, Caller, Scope, Session, hash_secret
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.ports.store import Store


class Credential:
    """Whether a subscriber's credential is still valid: a stream can last longer than the credential.

    `headers` None: the subscriber came with a ticket, so the key that made the ticket is checked."""

    def __init__(self, service: LiveService, caller: Caller, headers: Headers | None) -> None:
        self.caller = caller
        self._service = service
        self._headers = headers

    def has_expired(self, now: Instant) -> bool:
        return self.caller.until is not None and now >= self.caller.until

    async def is_valid(self) -> bool:
        """A store that does not respond does not end the subscription."""
        authenticator = self._service.authenticator
        if authenticator is None:
            return True
        try:
            caller = await self._key_caller() if self._headers is None else await authenticator.caller(self._headers)
        except Problem:
            return False
        except LeasewayError:
            return True
        return caller is not None and caller.tenant == self.caller.tenant and caller.may(Scope.JOBS_READ)

    async def _key_caller(self) -> Caller | None:
        store = self._service.world.store
        key = await store.keys.find(self.caller.name)
        if key is None:
            return self.caller  # made with a JWT, which expires by itself
        return key.caller() if key.is_live(await store.reads.now()) else None


TICKET_US = 30 * SECOND_US
TICKET_LENGTH = 32
TICKET_PREFIX = "ticket:"

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Caller).decode


async def make_ticket(store: Store, caller: Caller, random_text: Callable[[str, int], str]) -> tuple[str, Instant]:
    ticket, now = random_text(SECRET_ALPHABET, TICKET_LENGTH), await store.reads.now()
    until = min(now + TICKET_US, caller.until or now + TICKET_US)
    session = Session(
        hash=hash_ticket(ticket), key=TICKET_PREFIX + _encode(caller).decode(), created_at=now, expires_at=until
    )
    await store.sessions.add(session)
    return ticket, until


async def use_ticket(store: Store, ticket: str) -> Caller | None:
    """The caller that made the ticket. None: it does not exist, has expired, or was used."""
    if len(ticket) != TICKET_LENGTH or not (ticket.isascii() and ticket.isalnum()):
        return None
    found = await store.sessions.find(hash_ticket(ticket))
    if found is None or not found.key.startswith(TICKET_PREFIX) or found.expires_at <= await store.reads.now():
        return None
    # If several requests use a ticket at the same time, the store lets one of them end the session.
    if not await store.sessions.end(found.hash):
        return None
    return _decode(found.key.removeprefix(TICKET_PREFIX).encode())


def hash_ticket(ticket: str) -> str:
    return hash_secret(TICKET_PREFIX + ticket)
