"""The guarantees of `leaseway.ports.blob_store`, as tests that every blob store must pass. Used like
`job_store_contract`, with one fixture: `blobs`, an empty blob store.
"""

import asyncio

import pytest

from leaseway.domain.blob import blob_path
from leaseway.domain.errors import BlobMissing
from leaseway.domain.ids import JobId
from leaseway.ports.blob_store import BlobStore


def path_of(number: int, field: str = "payload") -> str:
    return blob_path(JobId(f"{number:026d}"), f"{field}-0123456789abcdef")


async def content(blobs: BlobStore, path: str) -> bytes:
    return b"".join([part async for part in blobs.read(path)])


async def paths(blobs: BlobStore, after: str = "", limit: int = 100) -> list[str]:
    return [blob.path for blob in await blobs.page(after, limit)]


@pytest.mark.parametrize("size", [0, 1, 300_000, 3_000_000])
async def test_a_blob_comes_back_as_it_was(blobs: BlobStore, size: int) -> None:
    """A job would run with other arguments than those that were submitted."""
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    await blobs.put(path_of(1), data)
    assert await content(blobs, path_of(1)) == data


async def test_a_large_blob_is_read_in_parts(blobs: BlobStore) -> None:
    """A service passes blobs on; it must not hold a whole one for each reader."""
    await blobs.put(path_of(1), b"x" * 1_000_000)
    assert max([len(part) async for part in blobs.read(path_of(1))]) <= 256 * 1024


async def test_a_missing_blob_is_named(blobs: BlobStore) -> None:
    """It is the one fault that repeating does not mend."""
    with pytest.raises(BlobMissing, match=r"0001\.payload"):
        await content(blobs, path_of(1))


async def test_a_repeated_write_changes_nothing(blobs: BlobStore) -> None:
    """A writer that lost the reply writes again."""
    for _ in range(2):
        await blobs.put(path_of(1), b"same")
    assert await paths(blobs) == [path_of(1)]
    assert await content(blobs, path_of(1)) == b"same"


async def test_concurrent_writes_do_not_mix(blobs: BlobStore) -> None:
    """Blobs of one submission are written at once."""
    await asyncio.gather(*(blobs.put(path_of(number), b"%d" % number * 1_000) for number in range(1, 20)))
    for number in range(1, 20):
        assert await content(blobs, path_of(number)) == b"%d" % number * 1_000


async def test_pages_of_a_list_follow_each_other_without_gaps(blobs: BlobStore) -> None:
    """A blob that a list leaves out is never deleted."""
    made = sorted(path_of(number, field) for number in range(1, 8) for field in ("payload", "result"))
    for path in made:
        await blobs.put(path, b"x")
    found: list[str] = []
    while page := await paths(blobs, found[-1] if found else "", 3):
        found += page
    assert found == made


async def test_a_list_tells_size_and_age(blobs: BlobStore) -> None:
    """A sweep leaves young blobs alone, because their jobs may not be stored yet."""
    await blobs.put(path_of(1), b"four")
    await blobs.put(path_of(2), b"seven..")
    first, second = await blobs.page("", 10)
    assert (first.bytes, second.bytes) == (4, 7)
    assert abs(first.modified_at - second.modified_at) < 600_000_000


async def test_deleting_twice_is_no_error(blobs: BlobStore) -> None:
    """Two sweeps may meet, and one that was interrupted is repeated."""
    await blobs.put(path_of(1), b"x")
    await blobs.put(path_of(2), b"x")
    for _ in range(2):
        await blobs.delete([path_of(1), path_of(9)])
    assert await paths(blobs) == [path_of(2)]


@pytest.mark.parametrize("path", ["../secret", "01/../../x.payload-0123456789abcdef", "/etc/passwd", "", "a/b"])
async def test_a_path_that_is_not_of_a_blob_is_refused(blobs: BlobStore, path: str) -> None:
    """Ids come from clients. None may lead out of the folder, or to another object of the bucket."""
    with pytest.raises(BlobMissing):
        await content(blobs, path)
    with pytest.raises(BlobMissing):
        await blobs.put(path, b"x")
