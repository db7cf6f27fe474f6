"""The source is asked which of some ids it still has, in a way that it cannot answer by mistake."""

from collections.abc import Sequence

from leaseway.domain.errors import TransientError
from leaseway.imports.assembly import ImportParts
from leaseway.imports.domain.shard import make_shard
from leaseway.imports.sources.port import RequestClient

WITNESSES = 2


class PresenceCheck:
    """Ids stand between two that the source certainly has.

    An answer without these two says nothing about the others: so answers an API whose database is away, and one that
    reads the first or the last of many ids alone.
    """

    def __init__(self, parts: ImportParts, http: RequestClient, witnesses: Sequence[str]) -> None:
        self._source, self._http, self._witnesses = parts.source, http, witnesses
        self._is_between = len(witnesses) > 1 and self._source.confirm_max > len(witnesses)
        self.batch = self._source.confirm_max - len(witnesses) if self._is_between else 1

    @classmethod
    async def of(cls, parts: ImportParts, http: RequestClient) -> "PresenceCheck":
        """With the first records of the source, as it shows itself now."""
        page = await parts.source.fetch(make_shard(parts.source.name, "all", {}), None, WITNESSES, http)
        rows, _ = parts.task.shape(page.records[:WITNESSES], page.server_time)
        if not rows:
            raise TransientError(f"source {parts.source.name}: shows no record at all; nothing is deleted")
        return cls(parts, http, [row.external_id for row in rows])

    async def which(self, ids: Sequence[str]) -> frozenset[str]:
        if self._is_between:
            first, last = self._witnesses
            others = [id for id in ids if id not in self._witnesses]
            present = await self._source.present([first, *others, last], self._http)
        else:
            present = await self._source.present(ids, self._http)
            present |= await self._source.present(self._witnesses[:1], self._http)
        missing = [id for id in self._witnesses[: 2 if self._is_between else 1] if id not in present]
        if missing:
            raise TransientError(
                f"source {self._source.name}: asked for {len(ids):,} records by id, it does not even have "
                f"{missing[0]!r}, which it had just now; nothing is deleted, and it is asked again later"
            )
        return present


def batched(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]
