"""The line at the foot of a worker's terminal: what its queues hold, and how fast that changes."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from leaseway.cli.screen.paint import is_terminal
from leaseway.domain.errors import LeasewayError
from leaseway.ports.read_model import ReadModel

if TYPE_CHECKING:
    from rich.text import Text

LOOK_SECONDS = 0.5
COUNTS = ("ready", "scheduled", "leased", "done", "failed")


@asynccontextmanager
async def showing_progress(store: ReadModel, queues: Sequence[str], show: bool) -> AsyncIterator[None]:
    """Beside the body, if somebody is there to see it."""
    if not show or not sys.stderr.isatty() or not is_terminal(sys.stderr):
        yield
        return
    from rich.console import Console
    from rich.live import Live

    progress = Progress()
    # What handlers print goes above the line; unless it goes into a file, where it shall stay.
    live = Live(
        get_renderable=progress.text,
        console=Console(stderr=True, highlight=False),
        refresh_per_second=4,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )
    with live:
        looking = asyncio.get_running_loop().create_task(progress.keep_looking(store, queues))
        try:
            yield
        finally:
            looking.cancel()


class Progress:
    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._per_second = 0.0

    async def keep_looking(self, store: ReadModel, queues: Sequence[str]) -> None:
        clock = asyncio.get_running_loop().time
        seen_at = clock()
        while True:  # until it is cancelled
            try:
                lanes = [lane for lane in await store.lanes() if lane.queue in queues]
            except LeasewayError:
                lanes = []  # the worker itself says what is wrong with the store
            if lanes:
                counts = {name: sum(getattr(lane, name) for lane in lanes) for name in COUNTS}
                now = clock()
                done = counts["done"] - self._counts.get("done", counts["done"])
                self._per_second = max(done, 0) / max(now - seen_at, 0.001)
                self._counts, seen_at = counts, now
            await asyncio.sleep(LOOK_SECONDS)

    def text(self) -> "Text":
        from rich.text import Text

        if not self._counts:
            return Text("waiting for work", style="dim")
        told = [f"{self._counts[name]:,} {name}" for name in COUNTS if self._counts[name] or name != "scheduled"]
        return Text(f"{' · '.join(told)} · {self._per_second:,.0f}/s", style="dim")
