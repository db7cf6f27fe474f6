"""Which job an idempotency key stands for. One contract, `leaseway.testing.keyed_contract`, proves every store."""

from typing import Protocol, runtime_checkable

from leaseway.domain.ids import JobId


@runtime_checkable
class Keyed(Protocol):
    async def keyed(self, tenant: str, key: str) -> JobId | None:
        """The job that was submitted with this key, whether it is still stored or not. None: the tenant has not used
        the key, or so long ago that it may be used anew."""
        ...
