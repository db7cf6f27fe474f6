"""Runs that are killed halfway, and how much is fetched again, according to the provider's journal."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Figure
from benchmarks.imports import theirs
from benchmarks.imports.dlt_peer import Setup
from benchmarks.imports.ours import SHARD_IDS, kill_all, run_seconds, started
from benchmarks.imports.place import Place, refuse_missing, wait_until
from benchmarks.imports.provider import PAGE_ROWS, Page


def dlt_resumed(place: Place) -> list[Figure]:
    """The same for dlt."""
    with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        pipeline = theirs.pipeline_in(Path(folder), place.it)
        setup = Setup("merge", normalize_workers=2, file_rows_max=theirs.FILE_ROWS, load_workers=1)
        command = pipeline.command(setup, place.it.id_max)
        before = len(place.it.pages())
        killed_at = killed_halfway(command, place)
        run_seconds(command)
        again, count = fetched_again(place.it.pages()[before:]), pipeline.rows()
    refuse_missing(place, count)
    note = f"killed at page {killed_at:,} and started again; up to {max(again.values(), default=0)} of one shard"
    return [Figure("the same, dlt, of all shards", float(sum(again.values())), "", None, note)]


def fetched_again(pages: Sequence[Page]) -> Counter[int]:
    """By range of ids, the number of pages that were requested again."""
    often = Counter(page.path for page in pages if f"maxresults={PAGE_ROWS}" in page.path)
    found: Counter[int] = Counter()
    for page in {page.path: page for page in pages}.values():
        found[(page.after + 1) // SHARD_IDS] += max(often[page.path] - 1, 0)
    return found


def killed_halfway(command: Sequence[str], place: Place) -> int:
    """Pages fetched before the kill."""
    before, half = len(place.it.pages()), place.it.rows / PAGE_ROWS / 2
    with started(command) as process:
        wait_until(lambda: len(place.it.pages()) - before >= half, process)
        kill_all(process)
        process.wait()
    return len(place.it.pages()) - before
