"""A gatekeeper for requests that no limit counts: the few questions before a plan is made."""

from leaseway.domain.limits.rate_limit_headers import Said
from leaseway.worker.provider_http import Fate, Pass


class OpenDoor:
    async def before(self) -> Pass:
        return Leave()

    async def after(self, pass_: Pass, said: Said | None, fate: Fate) -> None:
        """Nobody is told."""


class Leave:
    def check(self) -> bool:
        return True
