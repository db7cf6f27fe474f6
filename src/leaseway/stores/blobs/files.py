"""Blobs in a folder, which may be on a shared file system.

A blob is written under a temporary name, flushed, and renamed, so that a reader never sees a part of it. Temporary
files of a process that was killed are deleted a day later.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from leaseway.domain.blob import StoredBlob, parse_path
from leaseway.domain.errors import BlobMissing, StoreFull, StoreRefused, TransientError
from leaseway.domain.ids import SECOND_US, Instant

PART_BYTES = 256 * 1024
TEMPORARY = "tmp"
TEMPORARY_SECONDS_MAX = 86_400.0
DELETED_MAX = 1_000
"""Temporary files that one call deletes."""


class FileBlobs:
    def __init__(self, folder: str, now_us: Callable[[], Instant]) -> None:
        self._now_us = now_us
        self._root = Path(folder)

    async def put(self, path: str, data: bytes) -> None:
        await asyncio.to_thread(self._write, self._place(path), data)

    async def read(self, path: str) -> AsyncIterator[bytes]:
        try:
            file = await asyncio.to_thread(open, self._place(path), "rb")
        except FileNotFoundError:
            raise BlobMissing(f"blob {path} is not in {self._root}") from None
        except OSError as error:
            raise TransientError(f"blob {path} cannot be read: {error}") from error
        with file:
            while part := await asyncio.to_thread(file.read, PART_BYTES):
                yield part

    async def page(self, after: str, limit: int) -> list[StoredBlob]:
        return await asyncio.to_thread(self._page, after, limit)

    async def delete(self, paths: Sequence[str]) -> None:
        await asyncio.to_thread(self._delete, [self._place(path) for path in paths])

    async def close(self) -> None:
        """Nothing stays open."""

    def _place(self, path: str) -> Path:
        if parse_path(path) is None:
            raise BlobMissing(f"{path!r} is not the path of a blob")
        return self._root / path

    def _write(self, place: Path, data: bytes) -> None:
        hidden = self._root / TEMPORARY / secrets.token_hex(16)
        try:
            for folder in (hidden.parent, place.parent):
                if not folder.is_dir():
                    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                    flush_folder(folder.parent)
            with os.fdopen(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(place)
            flush_folder(place.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)
            raise translate_error(error, self._root) from error

    def _page(self, after: str, limit: int) -> list[StoredBlob]:
        if not after:
            self._delete(list(islice(self._abandoned(), DELETED_MAX)))
        return list(islice(self._behind(after), max(limit, 0)))

    def _behind(self, after: str) -> Iterator[StoredBlob]:
        for folder in names_in(self._root):
            if folder == TEMPORARY or folder < after[: len(folder)]:
                continue
            for name in names_in(self._root / folder):
                path = f"{folder}/{name}"
                if path > after and parse_path(path) is not None:
                    with contextlib.suppress(FileNotFoundError):  # another process has deleted it meanwhile
                        found = (self._root / path).stat()
                        yield StoredBlob(path, found.st_size, found.st_mtime_ns // 1_000)

    def _abandoned(self) -> Iterator[Path]:
        oldest = self._now_us() / SECOND_US - TEMPORARY_SECONDS_MAX
        for name in names_in(self._root / TEMPORARY):
            with contextlib.suppress(FileNotFoundError):
                if (self._root / TEMPORARY / name).stat().st_mtime < oldest:
                    yield self._root / TEMPORARY / name

    def _delete(self, places: Sequence[Path]) -> None:
        try:
            for place in places:
                place.unlink(missing_ok=True)
        except OSError as error:
            raise translate_error(error, self._root) from error


def names_in(folder: Path) -> list[str]:
    try:
        return sorted(each.name for each in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def flush_folder(folder: Path) -> None:
    """So that the entry of a new file survives a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def translate_error(error: OSError, root: Path) -> Exception:
    if isinstance(error, PermissionError | NotADirectoryError | FileExistsError):
        return StoreRefused(
            f"{root}: blobs cannot be written there ({error.strerror}); give the right, or another path"
        )
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return StoreFull(f"{root}: there is no space left for blobs; free some, and repeat the call")
    return TransientError(f"{root}: {error}; the call may be repeated")
