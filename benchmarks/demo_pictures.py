"""Draw the README's pictures of the demo: `./dev run python -m benchmarks.demo_pictures`.

Runs the demo once and writes `docs/demo.svg`, what its screen shows a while after the kill, and `docs/demo-report.svg`.
"""

import io
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from leaseway.demo.fleet import DemoFleet
from leaseway.demo.report import print_report
from leaseway.demo.runner import DemoScreen, DemoSettings, show, workers
from leaseway.demo.work_folder import work_folder
from leaseway.imports.run import progress_view
from leaseway.imports.run.progress import RunSnapshot

DOCS = Path(__file__).parent.parent / "docs"
WIDTH = 100
SHARE = 0.6
"""How much of the import the picture shows as done. A worker is killed before."""


class RecordingScreen(DemoScreen):
    """Keeps what the picture shows."""

    def __init__(self) -> None:
        super().__init__(recorder())
        self.frame: Group | None = None
        self._events: list[Text] = []

    def say(self, event: str, style: str = "") -> None:
        super().say(event, style)
        self._events.append(Text.assemble((self.elapsed(), "dim"), (event, style)))

    def show(self, snapshot: RunSnapshot, fleet: DemoFleet, held: Mapping[int, set[str]]) -> None:
        super().show(snapshot, fleet, held)
        if self.frame is None and snapshot.share >= SHARE:
            title = "ocm → poi"
            below = [workers(fleet.members, held), self.size(fleet)]
            self.frame = Group(*self._events, progress_view.frame(snapshot, title, WIDTH), *below)


def draw(path: Path, title: str, *lines: RenderableType) -> None:
    console = recorder()
    for each in lines:
        console.print(each)
    console.save_svg(str(path), title=title)


def recorder() -> Console:
    return Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)


def main() -> None:
    screen, report = RecordingScreen(), recorder()
    with work_folder(None) as folder:
        shown = show(DemoSettings(rows=None, workers=8, limit=50, seed=1), folder.path, screen)
        print_report(report, shown, folder)
    if not shown.is_clean or screen.frame is None:
        sys.exit("the demo was not clean, or too fast for a picture")
    draw(DOCS / "demo.svg", "leaseway demo", screen.frame)
    report.save_svg(str(DOCS / "demo-report.svg"), title="leaseway demo: the report")


if __name__ == "__main__":
    main()
