"""Whether a subscriber's credential is still valid: a stream can last longer than the credential."""

from starlette.datastructures import Headers

from leaseway.api.errors import Problem
from leaseway.api.live.hub import LiveService
from leaseway.domain.errors import LeasewayError
from leaseway.domain.identity import Caller, Scope
from leaseway.domain.ids import Instant


class Credential:
    """`headers` None: the subscriber came with a ticket, so the key that made the ticket is checked."""

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
