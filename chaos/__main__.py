"""python -m chaos --minutes N [--seed S] [--fault NAME …] [--workers 4]"""

import asyncio
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click

from chaos.campaign import Campaign, Round, judge
from chaos.exposure import exposing
from chaos.plan import FAULTS, schedule
from chaos.sabotage import SABOTAGES
from chaos.stage import Scale
from chaos.verdict import Verdict, page

ROUND_SECONDS_MAX = 300.0
"""A longer campaign has several rounds, each with its own server and its own verdict: what a round writes down must fit
into memory, and a violation should not have to wait for the morning."""


@click.command()
@click.option(
    "--minutes", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="How long faults go on."
)
@click.option("--seed", type=int, help="The schedule of faults; by chance if not given, and printed.")
@click.option("--fault", "faults", multiple=True, type=click.Choice(list(FAULTS)), help="Only these; again for more.")
@click.option("--workers", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--lease", type=click.FloatRange(min=1), default=3.0, show_default=True, help="Seconds.")
@click.option("--blackhole", type=click.FloatRange(min=0.2), default=60.0, show_default=True, help="Seconds at most.")
@click.option("--sabotage", type=click.Choice(list(SABOTAGES)), help="Take a safeguard away; the verdict must be bad.")
@click.option("--plan", "shows_plan", is_flag=True, help="Print the first faults of the schedule and leave.")
@click.option("--judge", "again", type=click.Path(exists=True, path_type=Path), help="Judge the histories of a folder.")
def main(
    minutes: float,
    seed: int | None,
    faults: tuple[str, ...],
    workers: int,
    lease: float,
    blackhole: float,
    sabotage: str | None,
    shows_plan: bool,
    again: Path | None,
) -> None:
    """Break a real PostgreSQL, its network and its workers for a while, and judge what came of the jobs."""
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    scale = Scale(lease=lease, blackhole=blackhole)
    if shows_plan:
        show_plan(seed, scale, faults)
        return
    if again is not None:
        sys.exit(0 if tell(judge(again)) else 1)
    is_good = True
    for number, seconds in enumerate(rounds(minutes * 60)):
        folder = Path(tempfile.mkdtemp(prefix="leaseway-chaos-"))
        click.echo(f"round {number + 1}: seed {seed + number}, {seconds:.0f} s of faults, histories in {folder}")
        round_ = Round(
            seed=str(seed + number),
            plan=exposing(sabotage, scale) if sabotage and not faults else schedule(str(seed + number), scale, faults),
            scale=scale,
            folder=folder,
            seconds=seconds,
            workers=workers,
            sabotage=sabotage or "",
        )
        round_is_good = tell(asyncio.run(Campaign(round_, click.echo).run()))
        if round_is_good:
            shutil.rmtree(folder)  # nobody has to read it
        is_good &= round_is_good
    click.echo("verdict: good" if is_good else "verdict: BAD")
    sys.exit(0 if is_good else 1)


def rounds(seconds: float) -> Iterator[float]:
    while seconds > 0:
        yield min(seconds, ROUND_SECONDS_MAX)
        seconds -= ROUND_SECONDS_MAX


def tell(verdict: Verdict) -> bool:
    for line in page(verdict):
        click.echo(line)
    return verdict.is_good


def show_plan(seed: int, scale: Scale, faults: tuple[str, ...]) -> None:
    for pause_seconds, fault in islice(schedule(str(seed), scale, faults), 2 * len(faults or FAULTS)):
        click.echo(f"after {pause_seconds:4} s  {fault.name:10} {fault.what()}")


if __name__ == "__main__":
    main(prog_name="python -m chaos")
