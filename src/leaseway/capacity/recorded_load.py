"""history ─► [what ran, when it ended, how long it took] ─► a mix of jobs that repeats it

Every attempt of the recorded time becomes one job. It arrives when attempts of its kind ended, and takes as long as one
of them took. That time contains the requests, so the provider of such a simulation answers at once.
"""

from collections.abc import Iterable, Mapping, Sequence

from leaseway.capacity.job_mix import JOBS_MAX, JobLoad
from leaseway.domain.errors import BadValue
from leaseway.domain.history.rows import DONE, FAILED, RUN, TIMES_US, HistoryCell, merge_cells
from leaseway.domain.history.timeline import HistoryRange, KindHistory, choose_range
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.ports.store import Store, require_history
from leaseway.worker.maintenance import read_timeline


async def read_recorded(store: Store, length: str, kinds: Iterable[str]) -> dict[str, JobLoad]:
    """The load of the last time of this length, for example "6h". Kinds that are not among these are left out."""
    span = choose_range(length, await store.reads.now())
    known = set(kinds)
    timeline = await read_timeline(require_history(store), span, chooses=lambda row: row.kind in known)
    loads = recorded_loads(timeline.kinds, span)
    if not loads:
        raise BadValue(
            "history", f"no attempt of these jobs ended in the last {length}; choose a longer time, up to 30d"
        )
    total = sum(load.count for load in loads.values())
    if total > JOBS_MAX:
        problem = f"has {total:,} attempts in {length}; {JOBS_MAX:,} can be simulated, so choose a shorter time"
        raise BadValue("history", problem)
    return loads


def recorded_loads(kinds: Sequence[KindHistory], span: HistoryRange) -> dict[str, JobLoad]:
    """One load per kind: tenants and queues are put together."""
    by_name: dict[str, list[KindHistory]] = {}
    for kind in kinds:
        by_name.setdefault(kind.key.kind, []).append(kind)
    begin = min((point.at for kind in kinds for point in kind.points), default=span.since)
    found = {name: recorded_load(each, begin, span.step_us) for name, each in sorted(by_name.items())}
    return {name: load for name, load in found.items() if load.count}


def recorded_load(kinds: Sequence[KindHistory], begin: Instant, step_us: int) -> JobLoad:
    ended: dict[Instant, int] = {}
    for point in (point for kind in kinds for point in kind.points):
        ended[point.at] = ended.get(point.at, 0) + attempts(point.cell)
    total = merge_cells(kind.total for kind in kinds)
    return JobLoad(
        count=sum(ended.values()),
        arrivals=tuple(((at - begin) / SECOND_US, count) for at, count in sorted(ended.items()) if count),
        arrival_step_seconds=step_us / SECOND_US,
        run_seconds=run_times(total.times.get(RUN, {})),
    )


def attempts(cell: HistoryCell) -> int:
    return cell.counts.get(DONE, 0) + cell.counts.get(FAILED, 0)


def run_times(buckets: Mapping[int, int]) -> dict[float, int]:
    """How many attempts took how long: the middle of each bucket."""
    return {TIMES_US[bucket] / 2 ** (1 / 8) / SECOND_US: count for bucket, count in sorted(buckets.items())}
