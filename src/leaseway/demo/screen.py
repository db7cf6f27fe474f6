"""What people see: a live table on a terminal, a line every two seconds elsewhere, and the closing table."""

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from leaseway.demo.fleet import Member
from leaseway.demo.watch import Sight

LINE_SECONDS = 2.0
FRAMES_PER_SECOND = 8
RATE_SECONDS = 1.0
BAR_WIDTH = 40


class Screen:
    def __init__(self, console: Console, jobs: int) -> None:
        self._console = console
        self._jobs = jobs
        self._started_at = self._line_at = time.monotonic()
        self._live = Live(console=console, refresh_per_second=FRAMES_PER_SECOND, transient=False)
        self._rate = Rate()

    def say(self, event: str) -> None:
        """Something happened. On a terminal it scrolls by above the live table."""
        self._console.print(Text.assemble((f"{self._seconds():6.1f} s  ", "dim"), event), highlight=False)

    def update(self, sight: Sight, members: Sequence[Member]) -> None:
        self._rate.count(time.monotonic(), sight.done)
        if self._console.is_terminal:
            self._live.update(self._frame(sight, members))
        elif time.monotonic() - self._line_at >= LINE_SECONDS:
            self._line_at = time.monotonic()
            share = f"{sight.done:,} of {self._jobs:,} done"
            self.say(f"{share}, {self._rate.per_second:,.0f} jobs/s, {sight.leased:,} leased")

    def __enter__(self) -> "Screen":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def _frame(self, sight: Sight, members: Sequence[Member]) -> RenderableType:
        head = Table.grid(padding=(0, 2))
        share = f"{sight.done:,} / {self._jobs:,} done"
        bar = ProgressBar(self._jobs, sight.done, width=BAR_WIDTH)
        head.add_row(Text(share, style="bold"), bar, f"{self._rate.per_second:,.0f} jobs/s", f"{sight.leased:,} leased")
        return Group("", head, self._workers(sight, members))

    def _workers(self, sight: Sight, members: Sequence[Member]) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for column in ("worker", "pid", "calls", "in hands"):
            table.add_column(column, justify="right")
        table.add_column("")
        for member in members:
            calls, held = sight.requests.get(member.number, 0), sight.held.get(member.pid, 0)
            state = ProgressBar(self._jobs, calls, width=BAR_WIDTH) if member.is_alive else Text("killed", "bold red")
            table.add_row(str(member.number), str(member.pid), f"{calls:,}", f"{held:,}", state)
        return table

    def _seconds(self) -> float:
        return time.monotonic() - self._started_at


class Rate:
    """Jobs per second over the last moment."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, int]] = []

    def count(self, now: float, done: int) -> None:
        self._looks = [look for look in self._looks if now - look[0] <= RATE_SECONDS]
        self._looks.append((now, done))

    @property
    def per_second(self) -> float:
        (first_at, first), (last_at, last) = self._looks[0], self._looks[-1]
        return (last - first) / max(last_at - first_at, 0.05)
