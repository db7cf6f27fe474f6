"""Whether somebody who was let in may still be here. A stream lasts longer than many a credential."""

from starlette.datastructures import Headers

from leaseway.api.errors import Problem
from leaseway.api.live.hub import House
from leaseway.domain.errors import LeasewayError
from leaseway.domain.identity import Caller, Scope
from leaseway.domain.ids import Instant


class Guest:
    """`headers` None: he came by a ticket, and what it was made for is looked at instead."""

    def __init__(self, service: House, caller: Caller, headers: Headers | None) -> None:
        self.caller = caller
        self._service = service
        self._headers = headers

    def is_over(self, now: Instant) -> bool:
        return self.caller.until is not None and now >= self.caller.until

    async def may_stay(self) -> bool:
        """Asked now and then. A store that does not answer throws nobody out."""
        authenticator = self._service.authenticator
        if authenticator is None:
            return True
        try:
            caller = await self._by_key() if self._headers is None else await authenticator.caller(self._headers)
        except Problem:
            return False
        except LeasewayError:
            return True
        return caller is not None and caller.tenant == self.caller.tenant and caller.may(Scope.JOBS_READ)

    async def _by_key(self) -> Caller | None:
        store = self._service.world.store
        key = await store.keys.find(self.caller.name)
        if key is None:
            return self.caller  # of a token, which ends by itself
        return key.caller() if key.is_live(await store.reads.now()) else None
