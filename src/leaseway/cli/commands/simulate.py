"""leaseway simulate: how long a load takes with how many workers, and what it costs, before it runs."""

import asyncio
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec.structs import replace

from leaseway.app import App
from leaseway.capacity.job_mix import JobLoad, WhatIf
from leaseway.capacity.provider_model import ProviderModel
from leaseway.capacity.recorded_load import read_recorded
from leaseway.capacity.report import (
    TITLES,
    CapacityReport,
    count_workers,
    duration_text,
    table_cells,
)
from leaseway.cli.commands.imports.open_sink import named
from leaseway.cli.load_app import load_app
from leaseway.cli.open_store import ask, store_url
from leaseway.cli.options import DURATION, CliSettings, pass_settings, with_store
from leaseway.cli.output.console import facts, is_terminal, note, print_json, say
from leaseway.cli.output.table import TableColumn, show_table
from leaseway.domain.errors import BadValue, UsageError
from leaseway.imports.run.assembly import ImportParts, load_import
from leaseway.imports.run.plan import Plan, plan_with_history
from leaseway.ports.store import Store
from leaseway.scaling.pools import SLOTS

if TYPE_CHECKING:
    from leaseway.capacity.simulate import SimulationSettings  # loads the stores, which the help does not need

BAR = 40

EXAMPLES = """Price a load before it runs, in virtual time against a model of the provider, for several worker counts.

    The workers, limits, budgets, retries and the page loop are the real ones; the provider and the handlers are models.
    Nothing is written, and no request is sent except those of the plan of an import.

    \b
      leaseway simulate tasks:app --jobs geocode=10000                       1, 2, 4 … workers, until more do not help
      leaseway simulate tasks:app --jobs geocode=10000 --limit maps=2x       what if the limit doubled?
      leaseway simulate tasks:app --history 6h --limit maps=2x               the same for what ran in the last six hours
      leaseway simulate countries.toml --workers 1,2,4 --provider 0.2,0.8    an import; median and p95 of a request
    """


@click.command("simulate", help=EXAMPLES)
@click.argument("target", metavar="APP|SPEC")
@click.option("--jobs", multiple=True, metavar="KIND=COUNT", help="Jobs of an app. May be repeated.")
@click.option(
    "--history", metavar="TIME", help="In place of --jobs: what this app ran in the last 15m to 30d, as it arrived."
)
@click.option("--args", "arguments", multiple=True, metavar="KIND=JSON", help="The arguments of these jobs.")
@click.option("--calls", multiple=True, metavar="KIND=COUNT", help="Requests per job. [1 if it has limits or budgets]")
@click.option("--work", multiple=True, metavar="KIND=SECONDS", help="Time of a job beside its requests. [0]")
@click.option("--rows", type=int, help="Rows of an import. [what the source reports]")
@click.option("--workers", metavar="1,2,4", help="Numbers of workers. [1,2,4 … until more do not help]")
@click.option("--concurrency", type=int, help="Jobs that a worker runs at a time. [20; shards of an import: 4]")
@click.option("--provider", default="0.2", show_default=True, metavar="MEDIAN[,P95]", help="Seconds of a request.")
@click.option("--errors", type=float, default=0.0, help="Share of requests that fail with 503. [0]")
@click.option("--throttled", type=float, default=0.0, help="Share of requests that are refused with 429. [0]")
@click.option("--price", "prices", multiple=True, metavar="UNIT=AMOUNT",
              help="What a request really costs: usd=0.004, tokens=900. [the declared cost]")  # fmt: skip
@click.option("--limit", "limits", multiple=True, metavar="NAME=RATE", help="Another rate: maps=100/second, maps=2x.")
@click.option("--budget", "budgets", multiple=True, metavar="NAME=AMOUNT", help="Another amount: spend=50, spend=2x.")
@click.option("--over", type=DURATION, default=0.0, metavar="DURATION", help="Jobs arrive over this time. [at once]")
@click.option("--days-max", type=float, default=30.0, show_default=True, help="The longest time that is simulated.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same result.")
@with_store
@pass_settings
def command(
    settings: CliSettings, /, target: str, jobs: tuple[str, ...], history: str | None, rows: int | None, **options: Any
) -> None:
    on_run = announce(settings)
    if history is not None:
        report = simulate_history(settings, target, jobs, history, options, on_run)
    elif jobs:
        from leaseway.capacity.simulate import simulate_jobs

        app = load_app(target)
        report = simulate_jobs(app.kinds, read_loads(app, jobs, options), read_settings(options, SLOTS), on_run)
    else:
        report = simulate_spec(target, rows, options, on_run)
    if settings.json:
        print_json(report_json(report))
    else:
        show_report(report)


def announce(settings: CliSettings) -> Callable[[int], None] | None:
    """A line per run on the standard error of a terminal, because a long load takes a while."""
    return None if settings.json or not is_terminal(sys.stderr) else say_run


def say_run(workers: int) -> None:
    note(f"simulating {count_workers(workers)} …")


def simulate_history(
    settings: CliSettings, target: str, jobs: tuple[str, ...], history: str, options: dict[str, Any],
    on_run: Callable[[int], None] | None,
) -> CapacityReport:  # fmt: skip
    """Run times are measured with their requests, so the provider answers at once."""
    if jobs or options["over"] or options["work"] or has_value("provider"):
        raise UsageError(
            "--history has its own jobs, arrivals and times; leave out --jobs, --over, --work and --provider"
        )
    from leaseway.capacity.simulate import simulate_jobs

    app = load_app(target)

    async def question(store: Store) -> dict[str, JobLoad]:
        return await read_recorded(store, history, app.kinds)

    settings.store = store_url(settings, app.url)
    loads = ask(settings, question)
    calls = read_pairs("--calls", options["calls"], int)
    arguments = read_pairs("--args", options["arguments"], msgspec.json.decode)
    for name in {*calls, *arguments} - set(loads):
        raise BadValue("calls" if name in calls else "args", f"{name} has no attempts in the last {history}")
    changed = {
        name: replace(load, calls=calls.get(name, load.calls), arguments=arguments.get(name, load.arguments))
        for name, load in loads.items()
    }
    chosen = read_settings(options, SLOTS)
    provider = replace(chosen.provider, seconds=0.0, p95_seconds=None)
    report = simulate_jobs(app.kinds, changed, replace(chosen, provider=provider), on_run)
    return replace(report, what=f"the last {history}: {report.what}")


def has_value(option: str) -> bool:
    """Whether it was given, and has not its default."""
    return click.get_current_context().get_parameter_source(option) is not click.core.ParameterSource.DEFAULT


def simulate_spec(
    target: str, rows: int | None, options: dict[str, Any], on_run: Callable[[int], None] | None
) -> CapacityReport:
    if target.partition(":")[2] and not target.endswith(".toml") and not Path(target).exists():
        refuse_app_without_jobs(target)
    for name in ("arguments", "calls", "work", "prices", "budgets"):
        if options[name]:
            raise UsageError(f"--{OPTION.get(name, name)} is for jobs of an app; an import has the price of its spec")
    if options["over"]:
        raise UsageError("--over is for jobs of an app; an import begins at once")
    from leaseway.capacity.simulate import IMPORT_CONCURRENCY, simulate_import

    parts = load_import(named(target))
    chosen = read_settings(options, parts.spec.source.concurrency or IMPORT_CONCURRENCY)
    return simulate_import(parts, asyncio.run(plan_for(parts, rows)), chosen, rows, on_run)


OPTION = {"arguments": "args", "prices": "price", "budgets": "budget"}


def refuse_app_without_jobs(target: str) -> None:
    """An importer is also named module:name; an app without jobs cannot be simulated."""
    try:
        app = load_app(target)
    except UsageError:
        return
    known = ", ".join(sorted(app.kinds)) or "none"
    raise UsageError(f"--jobs: say how many, for example --jobs KIND=1000; {target} has: {known}")


async def plan_for(parts: ImportParts, rows: int | None) -> Plan:
    """Probes the source, as `leaseway import plan` does."""
    plan = await plan_with_history(parts)
    return plan if rows is None or plan.rows is not None else plan._replace(rows=rows)


# -- reading options --------------------------------------------------------------------------------------------------


def read_loads(app: App, jobs: Sequence[str], options: dict[str, Any]) -> dict[str, JobLoad]:
    counts = read_pairs("--jobs", jobs, int)
    given = {
        "arguments": read_pairs("--args", options["arguments"], msgspec.json.decode),
        "calls": read_pairs("--calls", options["calls"], int),
        "seconds": read_pairs("--work", options["work"], float),
    }
    for name, values in given.items():
        if unknown := sorted(set(values) - set(counts)):
            raise BadValue(OPTION.get(name, name), f"{unknown[0]} is not among --jobs")
    return {
        kind: JobLoad(count=count, **{name: values[kind] for name, values in given.items() if kind in values})
        for kind, count in counts.items()
    }


def read_pairs(option: str, texts: Sequence[str], parse: Callable[[str], Any]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in pairs:
            raise UsageError(f"{option}: cannot read {text!r}; write NAME=VALUE, each name once")
        try:
            pairs[name] = parse(value)
        except ValueError:
            raise UsageError(f"{option}: cannot read the value in {text!r}") from None
    return pairs


def read_settings(options: dict[str, Any], concurrency: int) -> "SimulationSettings":
    from leaseway.capacity.simulate import SimulationSettings

    median, comma, p95 = options["provider"].partition(",")
    provider = ProviderModel(
        seconds=read_number("--provider", median),
        p95_seconds=read_number("--provider", p95) if comma else None,
        errors=options["errors"],
        throttled=options["throttled"],
        costs=read_pairs("--price", options["prices"], float),
    )
    return SimulationSettings(
        workers=read_workers(options["workers"]),
        concurrency=options["concurrency"] if options["concurrency"] is not None else concurrency,
        provider=provider,
        changes=WhatIf(
            limits=read_pairs("--limit", options["limits"], str),
            budgets=read_pairs("--budget", options["budgets"], str),
        ),
        over_seconds=options["over"],
        days_max=options["days_max"],
        seed=options["seed"],
    )


def read_number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option}: must be seconds, for example 0.2 or 0.2,0.8 (is {text!r})") from None


def read_workers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        raise UsageError(f"--workers: must be whole numbers, for example 1,2,4 (is {text!r})") from None


# -- output -----------------------------------------------------------------------------------------------------------


def show_report(report: CapacityReport) -> None:
    say(report.what, "bold")
    show_table([TableColumn(title, right=True) for title in TITLES], [table_cells(run) for run in report.runs])
    say()
    longest = max(run.seconds for run in report.runs) or 1.0
    for run in report.runs:
        bar = "█" * max(math.ceil(run.seconds / longest * BAR), 1)
        mark = "  ← knee" if run is report.knee else ""
        say(f"{run.workers:>7,}  {bar} {duration_text(run.seconds)}{mark}")
    say()
    refused = [(run.throttled, run.errors, run.failed, run.left) for run in report.runs]
    facts([("knee", report.reason), *troubles(refused)])


def troubles(counts: Sequence[tuple[int, int, int, int]]) -> list[tuple[str, str]]:
    """The most of any run; nothing, if there were none."""
    names = ("answered with 429", "answered with 503", "jobs failed", "jobs not ended")
    most = [max(each) for each in zip(*counts, strict=True)]
    texts = [f"{count:,} {name}" for count, name in zip(most, names, strict=True) if count]
    return [("trouble", ", ".join(texts))] if texts else []


def report_json(report: CapacityReport) -> dict[str, Any]:
    runs = [{**msgspec.to_builtins(run), "worker_hours": run.worker_hours} for run in report.runs]
    knee = report.knee.workers if report.is_knee_known else None
    return {"what": report.what, "knee_workers": knee, "reason": report.reason, "runs": runs}
