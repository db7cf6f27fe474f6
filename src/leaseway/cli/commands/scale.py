"""leaseway scale [status|simulate]"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from leaseway.api.schemas.scaling import pool_document, scale_document
from leaseway.api.schemas.values import as_dict
from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.open_limiter import limits_url, looking
from leaseway.cli.open_store import ask, ledger_in
from leaseway.cli.options import DURATION, CliSettings, everywhere, pass_settings, with_limits
from leaseway.cli.output.console import counted, facts, print_json, say
from leaseway.cli.output.table import Row, TableColumn, show_table
from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.scaling.agreement import PoolAgreement
from leaseway.domain.scaling.decision import ScalingState, bound_text, clamp, decide_workers
from leaseway.domain.scaling.demand import PoolObservation, workers_wanted
from leaseway.ports.store import Store
from leaseway.scaling.agree import read_pools
from leaseway.scaling.chart import draw_svg
from leaseway.scaling.observe import PoolObserver
from leaseway.scaling.plant import Plant, PlantReport, PlantSample, PlantSpec, Steps, law
from leaseway.scaling.pools import SLOTS, PoolReading, PoolSpec, parse_scaling
from leaseway.system import SystemChance, SystemClock, SystemIds
from leaseway.telemetry.log import NoEvents
from leaseway.wiring import limiter_at
from leaseway.worker.environment import Environment

POOL_TITLES = ("pool", "desired", "live", "fleets", "reason")
ROWS = 40
"""The lines of a chart."""
BAR = 40
CHANGES_SHOWN = 30
STEPS_MAX = 10_000

bounds = click.option(
    "--fleet", default="min=0,max=8", show_default=True, metavar="min=0,max=8", help="As in `leaseway work --fleet`."
)
slots = click.option(
    "--concurrency", "slots", type=int, default=SLOTS, show_default=True, help="Jobs that a worker runs at a time."
)


@click.group("scale", cls=InOrder)
@everywhere
def command() -> None:
    """How many workers the load needs, and what the autoscaler would do. Neither command starts a worker."""


# -- status ----------------------------------------------------------------------------------------------------------


@command.command("status")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only this queue. May be repeated.")
@bounds
@slots
@click.option(
    "--sample", type=DURATION, default=2.0, metavar="SECONDS", help="How long to measure rates; 0: not at all. [2]"
)
@with_limits
@pass_settings
def status(settings: CliSettings, queues: tuple[str, ...], fleet: str, slots: int, sample: float) -> None:
    """Show how many workers the jobs in the store need now, and what binds: demand, a limit, a budget or a cap."""
    scaling = parse_scaling("fleet", fleet)
    if slots < 1 or not 0 <= sample <= 60:
        raise UsageError("--concurrency must be at least 1, and --sample between 0 and 60 seconds")

    async def question(store: Store) -> tuple[Sequence[str], PoolObservation, Mapping[str, PoolAgreement]]:
        served = queues or sorted({lane.queue for lane in await store.reads.lanes()})
        return served, await observe(settings, store, served, slots, sample), await read_pools(store)

    served, seen, pools = ask(settings, question)
    spec = PoolSpec(name="status", queues=tuple(served), slots=slots, settings=scaling)
    # How many workers run is not known here: the decision is for a fleet that has what the load needs.
    seen = replace(seen, workers=clamp(workers_wanted(seen, scaling)[0], scaling))
    decision = decide_workers(seen, ScalingState(), scaling)
    reading = PoolReading(seen, decision, 0.0)
    if settings.json:
        document = as_dict(scale_document(spec, reading))
        del document["pool"]
        document["pools"] = [as_dict(pool_document(name, agreed)) for name, agreed in pools.items()]
        print_json(document)
    else:
        show_status(reading, served)
        show_pools(pools)


async def observe(
    settings: CliSettings, store: Store, queues: Sequence[str], slots: int, sample: float
) -> PoolObservation:
    async with looking(limits_url(settings)) as limiter:
        world = Environment(
            store, limiter or limiter_at("memory://"), ledger_in(store, settings), SystemClock(), SystemChance(),
            SystemIds(), NoEvents(),
        )  # fmt: skip
        observer = PoolObserver(world, queues)
        seen = await observer.observe(slots, 0)
        if sample:
            await asyncio.sleep(sample)
            seen = await observer.observe(slots, 0)
        return seen


def show_status(reading: PoolReading, queues: Sequence[str]) -> None:
    seen, decision = reading.observation, reading.decision
    facts([
        ("workers", f"{decision.workers:,}"),
        ("reason", decision.reason),
        ("queues", ", ".join(queues) or "none"),
        ("jobs", f"{seen.ready:,} ready, {seen.running:,} running, {seen.scheduled:,} scheduled"),
        ("rates", f"{sum(group.arrivals_per_second for group in seen.groups):.1f}/s arrive, "
                  f"{seen.finished_per_second:.1f}/s end"),
    ])  # fmt: skip
    rows: list[Row] = [[bound.what, bound.name, bound_text(bound)] for bound in seen.bounds.values()]
    if rows:
        say()
        show_table([TableColumn("bound"), TableColumn("name"), TableColumn("admits")], rows)


def show_pools(pools: Mapping[str, PoolAgreement]) -> None:
    """What runs now: the fleets of each pool and their last decision."""
    rows: list[Row] = [
        [
            name, str(agreed.workers), str(sum(fleet.live or 0 for fleet in agreed.fleets)), str(len(agreed.fleets)),
            "" if agreed.last is None else agreed.last.reason,
        ]
        for name, agreed in pools.items()
    ]  # fmt: skip
    if rows:
        say()
        columns = [TableColumn(title, right=title in ("desired", "live", "fleets")) for title in POOL_TITLES]
        show_table(columns, rows)


# -- simulate --------------------------------------------------------------------------------------------------------


@command.command("simulate")
@click.option("--load", metavar="0:1,10m:5", help="Jobs per second, from a time on. [1]")
@click.option(
    "--replay", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
    help="A recorded load instead: lines of CSV with a second and the jobs per second from then on.",
)  # fmt: skip
@click.option("--limit", metavar="0:none,10m:1", help="Starts per second, from a time on; none: no limit. [none]")
@click.option("--backlog", type=int, default=0, show_default=True, help="Jobs that wait at the beginning.")
@click.option("--service", type=DURATION, default=2.0, metavar="SECONDS", help="Mean duration of a job. [2]")
@click.option("--start", type=DURATION, default=2.0, metavar="SECONDS", help="What starting a worker takes. [2]")
@click.option("--duration", type=DURATION, default=3_600.0, metavar="SECONDS", help="How long to simulate. [1h]")
@click.option("--noise", type=float, default=0.0, show_default=True, help="Error of measured arrivals, from 0 to 1.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same run.")
@click.option("--svg", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write the chart there.")
@bounds
@slots
@everywhere
@pass_settings
def simulate(settings: CliSettings, /, load: str | None, replay: str | None, limit: str | None, fleet: str,
             svg: str | None, **options: Any) -> None:  # fmt: skip
    """Run a load through the autoscaler in virtual time, and draw what it would have done.

    \b
      leaseway scale simulate --load 0:1,10m:5,30m:1             a burst
      leaseway scale simulate --backlog 3600 --load 0 --limit 1  a backlog behind a limit
    """
    if load is not None and replay is not None:
        raise UsageError("give either --load or --replay")
    spec = PlantSpec(
        load=read_load(Path(replay)) if replay is not None else parse_steps("load", load or "1"),
        limit=parse_steps("limit", limit or "none"),
        seconds=options["duration"],
        backlog=options["backlog"],
        service_seconds=options["service"],
        slots=options["slots"],
        start_seconds=options["start"],
        noise=options["noise"],
        seed=options["seed"],
        period_seconds=5.0,
    )
    report = Plant(spec).run(law(parse_scaling("fleet", fleet)))
    if svg is not None:
        write_chart(Path(svg), report)
    if settings.json:
        print_json(report_json(report))
    else:
        show_chart(report)


def write_chart(path: Path, report: PlantReport) -> None:
    try:
        path.write_text(draw_svg(report), "utf-8")
    except OSError as error:
        raise UsageError(f"--svg: {path} cannot be written: {error.strerror}") from error


def parse_steps(field: str, text: str) -> Steps:
    """Parse "0:1,10m:5". A number alone holds from the beginning."""
    steps = []
    for part in text.split(","):
        at, colon, value = part.rpartition(":")
        try:
            seconds = DURATION.convert(at.strip(), None, None) if colon else 0.0
            rate = math.inf if value.strip() == "none" else float(value)
        except (ValueError, click.UsageError):
            raise BadValue(field, f"cannot read {part!r}; write for example 0:1,10m:5,30m:1") from None
        steps.append((seconds, rate))
    return tuple(steps)


def read_load(path: Path) -> Steps:
    """Lines such as "600,5.0". A first line with names is skipped."""
    steps: list[tuple[float, float]] = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
        try:
            at, rate = line.split(",")
            steps.append((float(at), float(rate)))
        except ValueError:
            if number == 1 or not line.strip():
                continue
            raise BadValue(f"{path}: line {number}", f"must be SECOND,JOBS_PER_SECOND (is {line[:80]!r})") from None
        if len(steps) > STEPS_MAX:
            raise BadValue(str(path), f"has more than {STEPS_MAX:,} lines; record less often")
    return tuple(steps)


def report_json(report: PlantReport) -> dict[str, Any]:
    return {
        "workers_max": report.workers_max,
        "worker_hours": round(report.worker_hours, 3),
        "wait_p50_seconds": round(report.wait(0.5), 3),
        "wait_p95_seconds": round(report.wait(0.95), 3),
        "changes": report.changes,
        "done": report.done,
        "left": report.left,
        "samples": [{name: getattr(sample, name) for name in sample.__struct_fields__} for sample in report.samples],
    }


def show_chart(report: PlantReport) -> None:
    highest = max(report.workers_max, 1)
    for sample in chart_rows(report.samples):
        bar = "█" * math.ceil(sample.workers * min(BAR, highest * 4) / highest)
        say(f"{clock_text(sample.at)}  {sample.workers:>3} {bar:<{BAR}} {sample.ready:>7,} wait")
    say()
    first, *others = report.samples
    changes = [first, *(sample for sample in others if sample.desired != sample.workers)]
    for sample in changes[:CHANGES_SHOWN]:
        say(f"{clock_text(sample.at)}  {sample.workers} → {sample.desired}: {sample.reason}", "dim")
    if len(changes) > CHANGES_SHOWN:
        say(f"… {len(changes) - CHANGES_SHOWN:,} more; --json shows all", "dim")
    say()
    hours = f"{report.worker_hours:.2f} worker hours"
    facts([
        ("workers", f"{report.workers_max:,} at most, {hours}, {counted(report.changes, 'change')}"),
        ("jobs", f"{report.done:,} done, {report.left:,} wait"),
        ("wait", f"{report.wait(0.5):.1f} s median, {report.wait(0.95):.1f} s p95"),
    ])  # fmt: skip


def clock_text(at: float) -> str:
    minutes, seconds = divmod(round(at), 60)
    return f"{minutes // 60:>3}:{minutes % 60:02}:{seconds:02}"


def chart_rows(samples: Sequence[PlantSample]) -> Iterator[PlantSample]:
    """At most `ROWS` lines; each shows the moment of its interval with the most workers."""
    size = math.ceil(len(samples) / ROWS)
    for begin in range(0, len(samples), size):
        yield max(samples[begin : begin + size], key=lambda sample: sample.workers)
