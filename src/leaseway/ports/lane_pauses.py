"""Lanes that people pause and resume. One contract, `leaseway.testing.pauses_contract`, proves every store."""

from typing import Protocol, runtime_checkable

from leaseway.domain.pauses import Pause


@runtime_checkable
class LanePauses(Protocol):
    async def pause_lanes(self, queue: str, tenant: str | None = None) -> bool:
        """Claim nothing from the lanes of this queue, of one tenant or of all, from the next exchange on. What is
        leased stays leased, and is settled as ever. False: they were paused before."""
        ...

    async def resume_lanes(self, queue: str, tenant: str | None = None) -> bool:
        """Claim from them again. Only the very pause is taken back: a queue that is paused as a whole stays so for each
        of its tenants. False: there was no such pause."""
        ...

    async def pauses(self) -> list[Pause]:
        """All that are in force, by queue and tenant."""
        ...
