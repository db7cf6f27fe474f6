"""quarantine ─► [build again] ─► row, or back into quarantine

After a spec was corrected, bad rows may become rows. A row is written and leaves quarantine in one transaction; a row
that is still bad stays. An interrupted replay can be repeated.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

import msgspec

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow, Row
from leaseway.imports.rows import RowBuilder
from leaseway.imports.run.finish_run import DELETED
from leaseway.imports.sinks.port import Sink

BATCH = 100
ROWS_MAX = 100_000
"""Per run. A sink reads the remaining rows again for each batch, and a quarantine with more rows than this is not
useful.
"""


class QuarantinedRow(NamedTuple):
    """One bad row in quarantine."""

    number: int
    run: str
    shard: str
    bad: BadRow


class ReplayResult:
    """What happened to the bad rows."""

    def __init__(self) -> None:
        self.written = 0
        self.discarded = 0
        self.missing: list[int] = []
        """Numbers that are not in quarantine, because they were released concurrently or never existed."""
        self.quarantined: dict[str, list[tuple[int, str]]] = {}
        """By code: numbers and problems."""

    @property
    def quarantined_count(self) -> int:
        return sum(len(each) for each in self.quarantined.values())

    def stays(self, number: int, code: str, problem: str) -> None:
        self.quarantined.setdefault(code, []).append((number, problem))


async def read_quarantine(sink: Sink, runs: Iterable[str], rows_max: int = ROWS_MAX) -> AsyncIterator[QuarantinedRow]:
    """Run by run, the oldest row first. A sink lists from the beginning, so rows that stay are skipped."""
    for run in runs:
        seen: set[int] = set()
        while len(seen) < rows_max:
            # Double the number read each time: skipping the remaining rows then costs twice the reading, not its
            # square.
            found = await sink.quarantine.find_all(run, min(len(seen) + max(BATCH, len(seen)), rows_max))
            fresh = [each for each in found if each[0] not in seen]
            if not fresh:
                break
            for number, shard, bad in fresh:
                seen.add(number)
                yield QuarantinedRow(number, run, shard, bad)


async def replay(
    sink: Sink,
    moulds: RowBuilder,
    runs: Iterable[str],
    newest: str | None,
    now: Instant,
    told: Callable[[int], None] = lambda count: None,
    rows_max: int = ROWS_MAX,
) -> ReplayResult:
    """`runs` are ordered from the oldest to the newest, so later records are written later. `newest` is the last run of
    the source. `rows_max` applies to each run.
    """
    done = ReplayResult()
    for run in runs:
        feeds = await find_delete_feeds(sink, run)
        async for kept in read_quarantine(sink, [run], rows_max):
            shaped = rebuild_row(moulds, kept.bad, now)
            if isinstance(shaped, BadRow):
                done.stays(kept.number, shaped.code, shaped.problem)
            elif problem := refuse_old_row(shaped, kept.bad, run == newest):
                done.stays(kept.number, "no_stamp", problem)
            else:
                row = msgspec.structs.replace(shaped, is_deleted=kept.shard in feeds)
                await write_row(sink, kept.number, row, done)
            told(1)
    return done


async def find_delete_feeds(sink: Sink, run: str) -> frozenset[str]:
    """Shards that read deleted records. A row from such a shard must be written as deleted."""
    return frozenset(row.shard.key for row in await sink.shards.find_all(run) if DELETED in row.shard.predicate)


async def write_row(sink: Sink, number: int, row: Row, done: ReplayResult) -> None:
    try:
        was_there = await sink.quarantine.release(number, row)
    except BadValue as error:  # the table cannot store it
        done.stays(number, "bad_type", str(error))
        return
    if was_there:
        done.written += 1
    else:
        done.missing.append(number)


def rebuild_row(moulds: RowBuilder, bad: BadRow, now: Instant) -> Row | BadRow:
    try:
        record = msgspec.json.decode(bad.document)
    except (msgspec.DecodeError, RecursionError) as error:
        return msgspec.structs.replace(bad, problem=f"its document cannot be parsed: {error}")
    rows, still_bad = moulds.build([record], now)
    return rows[0] if rows else still_bad[0]


def refuse_old_row(row: Row, bad: BadRow, is_newest: bool) -> str | None:
    """With a stamp, the sink knows which document is newer. Without one, an old document must not replace a
    newer one.
    """
    if row.stamp:
        return None
    if bad.code == "duplicate_key_in_page":
        return "appears twice in one page, and no stamp tells which is newer; discard it, or import it again"
    if not is_newest:
        return "has no stamp and may be older than the stored row: only the newest run can be replayed; discard it"
    return None


async def discard(sink: Sink, numbers: Iterable[int]) -> ReplayResult:
    done = ReplayResult()
    for number in numbers:
        if await sink.quarantine.release(number, None):
            done.discarded += 1
        else:
            done.missing.append(number)
    return done
