"""What a store knows about its own health: the `doctor` asks."""

from typing import Protocol, runtime_checkable

from leaseway.domain.health import Finding


@runtime_checkable
class Checkup(Protocol):
    async def checkup(self, *, deep: bool = False) -> list[Finding]:
        """Every check with its answer, the good ones too, in an order that leads from cause to effect.

        Changes nothing, works on a store that is not open, and tells of a sick store instead of raising. Checks that
        read everything stop after some seconds; `deep` lets them finish.
        """
        ...
