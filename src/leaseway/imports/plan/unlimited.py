"""A gatekeeper for requests that no limit counts: the few questions before a plan is made."""

from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.worker.provider_http import Delivery, RequestGrant


class OpenDoor:
    async def before(self) -> RequestGrant:
        return Leave()

    async def after(self, pass_: RequestGrant, said: RateLimitStatus | None, fate: Delivery) -> None:
        """Nobody is told."""


class Leave:
    def check(self) -> bool:
        return True
