"""leaseway import quarantine"""

from collections.abc import Sequence

from leaseway.api.schemas.imports import quarantined_document, replayed_document
from leaseway.cli.commands.imports.open_sink import RUNS_MAX, OpenedSink, command, find_run, last_run, look
from leaseway.cli.options import CliSettings
from leaseway.cli.output.console import Counter, counted, note, print_json, say
from leaseway.cli.output.table import TableColumn, show_table
from leaseway.domain.errors import NoSuchJob
from leaseway.imports.rows import RowBuilder
from leaseway.imports.run.quarantine_replay import (
    ROWS_MAX,
    QuarantinedRow,
    ReplayResult,
    discard,
    read_quarantine,
    replay,
)
from leaseway.system import wall_clock_us

SHOWN_MAX = 100
NUMBERS_SHOWN_MAX = 10


def show_quarantine(settings: CliSettings, text: str, run: str | None) -> None:
    kept = look(text, lambda at: listed(at, run, ROWS_MAX if settings.json else SHOWN_MAX + 1))
    if settings.json:
        print_json([quarantined_document(each) for each in kept])
        return
    if not kept:
        note("the quarantine is empty")
        return
    columns = [TableColumn("number", right=True), TableColumn("run"), TableColumn("shard", may_shrink=True)]
    columns += [TableColumn("id"), TableColumn("code"), TableColumn("problem", may_shrink=True)]
    show_table(columns, [cells(each) for each in kept[:SHOWN_MAX]])
    if len(kept) > SHOWN_MAX:
        note(f"and more; these are the oldest {SHOWN_MAX:,}, --json has them all")
    note(f"correct the spec, then run: {command(settings, 'quarantine replay', text, run)}")


def cells(each: QuarantinedRow) -> list[str]:
    bad = each.bad
    return [f"{each.number:,}", each.run, each.shard, bad.external_id or "", bad.code, bad.problem]


async def listed(at: OpenedSink, run: str | None, rows_max: int) -> list[QuarantinedRow]:
    kept: list[QuarantinedRow] = []
    async for each in read_quarantine(at.sink, await select_runs(at, run)):
        kept.append(each)
        if len(kept) >= rows_max:
            break
    return kept


async def select_runs(at: OpenedSink, run: str | None) -> list[str]:
    """The bad rows of this source only, oldest first: another source in the same table has another spec."""
    if run is not None:
        return [(await find_run(at, run)).id]
    return [row.id for row in reversed(await at.sink.runs.find_all(at.source, RUNS_MAX))]


def replay_quarantine(settings: CliSettings, text: str, run: str | None, discarded: Sequence[int]) -> None:
    with Counter("checked") as counter:
        done = look(text, lambda at: dropped(at, discarded) if discarded else tried(at, run, counter))
    if settings.json:
        print_json(replayed_document(done))
        return
    if discarded:
        say(f"{counted(done.discarded, 'record')} discarded")
    elif not (done.written or done.quarantined or done.missing):
        note("the quarantine is empty")
    else:
        say(f"{counted(done.written, 'row')} written, {counted(done.quarantined_count, 'record')} kept in quarantine")
    for code, records in sorted(done.quarantined.items()):
        number, problem = records[0]
        say(f"  {code} {len(records):,}: the first, number {number}: {problem}", "yellow")
    if done.missing:
        numbers = ", ".join(map(str, done.missing[:NUMBERS_SHOWN_MAX]))
        note(f"no longer in quarantine: {numbers}{' …' if len(done.missing) > NUMBERS_SHOWN_MAX else ''}")


async def tried(at: OpenedSink, run: str | None, counter: Counter) -> ReplayResult:
    moulds = RowBuilder(at.spec.resource)
    return await replay(at.sink, moulds, await select_runs(at, run), await newest(at), wall_clock_us(), counter.add)


async def newest(at: OpenedSink) -> str | None:
    last = await last_run(at)
    return None if last is None else last.id


async def dropped(at: OpenedSink, numbers: Sequence[int]) -> ReplayResult:
    """Discards nothing if one of the numbers is wrong, because a wrong number may name another record."""
    known = {each.number async for each in read_quarantine(at.sink, await select_runs(at, None))}
    unknown = [str(number) for number in numbers if number not in known]
    if unknown:
        raise NoSuchJob(
            f"number {', '.join(unknown)}: not in the quarantine of {at.source}; nothing was discarded. "
            f"See: leaseway import quarantine list {at.name}"
        )
    return await discard(at.sink, numbers)
