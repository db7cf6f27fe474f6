"""Draw a run: a live table on a terminal, otherwise a line every two seconds."""

from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from leaseway.domain.errors import TransientError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import Rate
from leaseway.imports.run.assembly import ImportParts
from leaseway.imports.run.progress import ProgressTracker, RunningShard, RunSnapshot, ShardProblem, tightest
from leaseway.system import SystemClock

FRAMES_PER_SECOND = 8
POLL_SECONDS = 0.5
POLL_SHARE = 10
"""Poll runs with very many shards less often: polling takes at most a tenth of the time."""
LEFT_SECONDS = 0.05
"""How soon the end of all workers is noticed."""
LINE_SECONDS = 2.0
RUNNING_MAX = 8
RUNNING_WIDTH = 48
PROBLEMS_MAX = 3
UNITS = {1: "s", 60: "min", 3_600: "h", 86_400: "day"}
INDENT = (0, 2, 0, 0)


async def watch(parts: ImportParts, run: str, is_any_left: Callable[[], bool], console: Console) -> None:
    """Show the run until no worker is left."""
    clock, watching = SystemClock(), ProgressTracker(source_rate(parts))
    await parts.sink.open()
    try:
        with ProgressView(console, f"{parts.spec.source.name} → {parts.spec.sink.table}") as screen:
            pause = POLL_SECONDS
            while is_any_left():
                until = clock.monotonic() + pause
                while is_any_left() and clock.monotonic() < until:
                    await clock.sleep(LEFT_SECONDS)
                began = clock.monotonic()
                try:
                    row, shards = await parts.sink.runs.find(run), await parts.sink.shards.find_all(run)
                except TransientError:
                    continue  # polling can fail without affecting the workers
                if row is not None:
                    screen.show(watching.update(clock.monotonic(), row, shards))
                pause = max(POLL_SECONDS, (clock.monotonic() - began) * POLL_SHARE)
    finally:
        await parts.sink.close()


def source_rate(parts: ImportParts) -> Rate | None:
    return tightest(parts.source.limit.definition.rates) if parts.source.limit else None


class ProgressView:
    """A live table on a terminal; elsewhere lines, written by `say`."""

    def __init__(self, console: Console, title: str, say: Callable[[str], None] | None = None) -> None:
        self._console = console
        self._title = title
        self._say = self._told if say is None else say
        self._last: RunSnapshot | None = None
        self._line_at = LINE_SECONDS
        self._live = Live(console=console, refresh_per_second=FRAMES_PER_SECOND)

    def show(self, snapshot: RunSnapshot, footer: RenderableType | None = None) -> None:
        """`footer` is shown below the table."""
        self._last = snapshot
        if self._console.is_terminal:
            below = [] if footer is None else [footer]
            self._live.update(Group(frame(snapshot, self._title, self._console.width), *below))
        elif snapshot.seconds >= self._line_at:
            self._line_at = snapshot.seconds + LINE_SECONDS
            self._say(line(snapshot))

    def _told(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def __enter__(self) -> "ProgressView":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._console.is_terminal and self._last is not None:
            self._live.update(summary(self._last, self._title, is_over=True))
        self._live.stop()


# -- on a terminal ----------------------------------------------------------------------------------------------------


def frame(snapshot: RunSnapshot, title: str, width: int) -> RenderableType:
    """The height does not depend on the number of running shards, so the display does not jump."""
    return Group(summary(snapshot, title), "", strips(snapshot.running_shards, width), reactions(snapshot))


def summary(snapshot: RunSnapshot, title: str, *, is_over: bool = False) -> RenderableType:
    """After the end of the run, the rate of the last seconds is not shown."""
    head = Table.grid(expand=True)
    head.add_column()
    head.add_column(justify="right")
    head.add_row(Text(title, "bold"), Text(f"run {snapshot.run}", "dim", overflow="ellipsis", no_wrap=True))
    bar = Table.grid(expand=True, padding=INDENT)
    bar.add_column(ratio=1)
    for least in (5, 12, 9):
        bar.add_column(justify="right", no_wrap=True, min_width=least)
    bar.add_row(
        make_bar(snapshot.share),
        f"{snapshot.share:.0%}",
        f"{snapshot.rows:,} rows",
        left(snapshot) or span(snapshot.seconds),
    )
    return Group(head, bar, Text(" · ".join(standing(snapshot) if is_over else figures(snapshot))))


def figures(snapshot: RunSnapshot) -> list[str]:
    return [f"{snapshot.rows_per_second:,.0f} rows/s", asked(snapshot), *standing(snapshot)]


def standing(snapshot: RunSnapshot) -> list[str]:
    found = [f"{snapshot.ended:,} of {snapshot.shards:,} shards, {snapshot.running:,} at work"]
    if snapshot.budget is not None:
        found.append(f"budget {snapshot.budget.requests:,} of {snapshot.budget.requests_max:,}")
    return found


def strips(running: Sequence[RunningShard], width: int) -> RenderableType:
    columns = max(min(width // RUNNING_WIDTH, 2), 1)
    most = RUNNING_MAX * columns
    grid = Table.grid(expand=True, padding=INDENT)
    for _ in range(columns):
        grid.add_column(ratio=1)
    cells: list[RenderableType] = [strip(each) for each in running[:most]]
    cells += [Text("")] * (most - len(cells))
    for row in range(RUNNING_MAX):
        grid.add_row(*cells[row::RUNNING_MAX])
    more = len(running) - most
    return Group(grid, Text(f"and {more:,} more" if more > 0 else "", "dim"))


def strip(each: RunningShard) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=24, style="dim")
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True, min_width=8)
    bar: RenderableType = Text("") if each.share is None else make_bar(each.share)
    grid.add_row(each.label, bar, f"{each.rows:,}")
    return grid


def make_bar(share: float) -> ProgressBar:
    return ProgressBar(1.0, share, complete_style="cyan", finished_style="green")


def reactions(snapshot: RunSnapshot) -> RenderableType:
    found = [Text(f"{name} {count:,}", "yellow") for name, count in sorted(snapshot.guards.items())]
    if snapshot.quarantined:
        found.append(Text(f"in quarantine {snapshot.quarantined:,}", "yellow"))
    told = Text(" · ").join(found) if found else Text("no guards triggered", "dim")
    return Group(told, *(trouble(each) for each in snapshot.problems[:PROBLEMS_MAX]))


def trouble(each: ShardProblem) -> Text:
    what, style = ("parked", "red") if each.is_parked else ("tried again", "yellow")
    return Text(f"{what}: {each.label}: {each.why}", style, overflow="ellipsis", no_wrap=True)


# -- without a terminal -----------------------------------------------------------------------------------------------


def line(snapshot: RunSnapshot) -> str:
    parts = [f"{snapshot.share:.0%}", f"{snapshot.rows:,} rows", *figures(snapshot), left(snapshot)]
    if snapshot.quarantined:
        parts.append(f"in quarantine {snapshot.quarantined:,}")
    parked = sum(each.is_parked for each in snapshot.problems)
    if parked:
        parts.append(f"parked {parked:,}")
    return ", ".join(part for part in parts if part)


# -- texts ------------------------------------------------------------------------------------------------------------


def asked(snapshot: RunSnapshot) -> str:
    """In the window of the limit: 47.8 of 50 requests/s."""
    rate = snapshot.limit
    if rate is None:
        return f"{snapshot.requests_per_second:,.1f} requests/s"
    seconds = rate.window_us / SECOND_US
    unit = UNITS.get(int(seconds), f"{seconds:g} s") if seconds == int(seconds) else f"{seconds:g} s"
    return f"{snapshot.requests_per_second * seconds:,.1f} of {rate.count:,} requests/{unit}"


def left(snapshot: RunSnapshot) -> str:
    return f"{span(snapshot.seconds_left)} left" if snapshot.seconds_left else ""


def span(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
