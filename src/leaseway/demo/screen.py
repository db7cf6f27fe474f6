"""The screen while the demo runs: events as they happen, and below them the run as `leaseway import` shows it."""

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from leaseway.demo.fleet import Member
from leaseway.imports.progress import progress_view
from leaseway.imports.progress.progress import RunSnapshot


class DemoScreen:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.run = progress_view.ProgressView(console, "ocm → poi", self.say)
        self._started_at = time.monotonic()

    def say(self, event: str, style: str = "") -> None:
        """Print an event. On a terminal it scrolls above the live table."""
        at = f"{time.monotonic() - self._started_at:6.1f} s  "
        self.console.print(Text.assemble((at, "dim"), (event, style)), soft_wrap=True)

    def show(self, snapshot: RunSnapshot, members: Sequence[Member], held: Mapping[int, set[str]]) -> None:
        self.run.show(snapshot, workers(members, held))


def workers(members: Sequence[Member], held: Mapping[int, set[str]]) -> Text:
    """One word per worker: ● with the number of its shards, or ✕."""
    found = Text("workers  ", "dim")
    for member in members:
        if member.was_killed:
            found.append(f"{member.number} ✕ killed   ", "bold red")
        elif member.is_alive:
            found.append(f"{member.number} ", "dim").append("● ", "green").append(f"{len(held.get(member.pid, ()))}   ")
        else:
            found.append(f"{member.number} done   ", "dim")
    return found
