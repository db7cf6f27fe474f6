"""./dev chaos --minutes N [--store sqlite|mongodb] [--seed S] [--fault NAME …] [--workers 4]"""

import asyncio
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click

from chaos.campaign import Campaign, Round, judge
from chaos.exposure import ON_MONGODB, ON_SQLITE, exposing
from chaos.plan import FAULTS, Planned, schedule
from chaos.sabotage import SABOTAGES
from chaos.stage import MEMBERS_LEASE_SECONDS, Scale
from chaos.verdict import Verdict, page

ROUND_SECONDS_MAX = 300.0
"""A longer campaign has several rounds, each with its own server and its own verdict: the history of a round must fit
into memory, and a violation is reported at the end of its round.
"""
LEASE_SECONDS = {"mongodb": MEMBERS_LEASE_SECONDS}
PLANNED_MIN = 10
"""The number of faults that `--plan` shows: enough to see every length of one kind."""


@click.command()
@click.option(
    "--minutes", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="How long faults go on."
)
@click.option("--seed", type=int, help="The schedule of faults; by chance if not given, and printed.")
@click.option("--store", type=click.Choice(list(FAULTS)), default="postgres", show_default=True)
@click.option("--fault", "faults", multiple=True, metavar="NAME", help="Only these; again for more.")
@click.option("--workers", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option(
    "--lease", type=click.FloatRange(min=1), help="Seconds. Default: 3; on MongoDB 8, to outlast an election."
)
@click.option("--blackhole", type=click.FloatRange(min=0.2), default=60.0, show_default=True, help="Seconds at most.")
@click.option("--sabotage", type=click.Choice(list(SABOTAGES)), help="Take a safeguard away; the verdict must be bad.")
@click.option("--plan", "shows_plan", is_flag=True, help="Print the first faults of the schedule and leave.")
@click.option("--judge", "again", type=click.Path(exists=True, path_type=Path), help="Judge the histories of a folder.")
def main(
    minutes: float,
    seed: int | None,
    store: str,
    faults: tuple[str, ...],
    workers: int,
    lease: float | None,
    blackhole: float,
    sabotage: str | None,
    shows_plan: bool,
    again: Path | None,
) -> None:
    """Break a real store, its network and its workers for a while, and check the resulting histories."""
    check_choices(store, faults, sabotage)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    scale = Scale(lease=lease or LEASE_SECONDS.get(store, Scale().lease), blackhole=blackhole)
    if shows_plan:
        show_plan(seed, scale, faults, store)
        return
    if again is not None:
        sys.exit(0 if tell(judge(again)) else 1)
    orders = Orders(scale, faults, workers, sabotage or "", store)
    verdicts = [one_round(orders, seed + number, seconds) for number, seconds in enumerate(rounds(minutes * 60))]
    click.echo("verdict: good" if all(verdicts) else "verdict: BAD")
    sys.exit(0 if all(verdicts) else 1)


class Orders(NamedTuple):
    """What all rounds share."""

    scale: Scale
    faults: tuple[str, ...]
    workers: int
    sabotage: str
    store: str

    def plan(self, seed: str) -> Iterator[Planned]:
        if self.sabotage and not self.faults:
            return exposing(self.sabotage, self.scale, self.store)
        return schedule(seed, self.scale, self.faults, self.store)


def one_round(orders: Orders, seed: int, seconds: float) -> bool:
    """Whether the round had no violation. Histories are kept only if it had one."""
    folder = Path(tempfile.mkdtemp(prefix="leaseway-chaos-"))
    click.echo(f"seed {seed}: {seconds:.0f} s of faults, histories in {folder}")
    round_ = Round(
        seed=str(seed),
        plan=orders.plan(str(seed)),
        scale=orders.scale,
        folder=folder,
        seconds=seconds,
        workers=orders.workers,
        sabotage=orders.sabotage,
        store=orders.store,
    )
    is_good = tell(asyncio.run(Campaign(round_, click.echo).run()))
    if is_good:
        shutil.rmtree(folder)
    return is_good


def rounds(seconds: float) -> Iterator[float]:
    while seconds > 0:
        yield min(seconds, ROUND_SECONDS_MAX)
        seconds -= ROUND_SECONDS_MAX


def tell(verdict: Verdict) -> bool:
    for line in page(verdict):
        click.echo(line)
    return verdict.is_good


def check_choices(store: str, faults: tuple[str, ...], sabotage: str | None) -> None:
    unknown = [name for name in faults if name not in FAULTS[store]]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(FAULTS[store])}", param_hint="--fault")
    possible = {"sqlite": ON_SQLITE, "mongodb": ON_MONGODB}.get(store)
    if sabotage and possible is not None and sabotage not in possible:
        named = ", ".join(possible) or f"those that are possible on {store}: none"
        raise click.BadParameter(f"{sabotage} is not one of {named}", param_hint="--sabotage")


def show_plan(seed: int, scale: Scale, faults: tuple[str, ...], store: str) -> None:
    count = max(PLANNED_MIN, 2 * len(faults or FAULTS[store]))
    for pause_seconds, fault in islice(schedule(str(seed), scale, faults, store), count):
        click.echo(f"after {pause_seconds:4} s  {fault.name:14} {fault.what()}")


if __name__ == "__main__":
    main(prog_name="./dev chaos")
