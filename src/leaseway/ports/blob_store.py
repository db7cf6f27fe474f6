"""Where texts are kept that are too large for a row. See `leaseway.domain.blob`."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from leaseway.domain.blob import StoredBlob


class BlobStore(Protocol):
    """Immutable blobs by path. Paths are those of `leaseway.domain.blob.blob_path`, and each is written once."""

    async def put(self, path: str, data: bytes) -> None:
        """Store a blob. It survives a crash of the machine from the return on. A repetition changes nothing.

        Raises TransientError if the same call may succeed later.
        """
        ...

    def read(self, path: str) -> AsyncIterator[bytes]:
        """The content in parts of at most 256 KiB. Raises BlobMissing if there is no such blob."""
        ...

    async def page(self, after: str, limit: int) -> list[StoredBlob]:
        """At most `limit` blobs whose paths are behind `after`, in the order of their paths. Other files are left
        out."""
        ...

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete blobs. One that does not exist is not an error."""
        ...

    async def close(self) -> None: ...
