"""The contestants: each returns one number, from processes of its own, in a new and idle database."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from benchmarks.contestants import figures_of, rate
from benchmarks.harness import Measure, in_turns, median, say
from benchmarks.postgres.database import checkpoint, new_database, pinned_snapshot, rest
from benchmarks.postgres.setups import RAW, Peer, Setup
from benchmarks.processes import rate_of, run_together, start_seconds
from leaseway.bench.processes import Figures, command, probed
from leaseway.testing.valkey import valkey_server

Keep = Callable[[Figures], None]
KeepStart = Callable[[float], None]


def keep_nothing(figures: object) -> None:
    pass


# -- leaseway -------------------------------------------------------------------------------------------------------


def fill(url: str, count: int) -> None:
    probed("submit_bulk", url, count - 1)  # it submits one to warm up
    rest(url)


def drained(
    server_url: str, count: int, workers: int = 1, keep: Keep = keep_nothing, keep_start: KeepStart = keep_nothing
) -> Measure:
    """`keep_start` gets the seconds that the start of the processes took."""

    def measure(_: Path) -> float:
        with new_database(server_url) as url:
            fill(url, count)
            found = run_together([command("drain_until_empty", url, 0)] * workers)
        for figures in found:
            keep(figures)
        keep_start(start_seconds(found))
        return rate_of(found, count)

    return measure


def drained_from(server_url: str, filled: str, count: int) -> Measure:
    """From a database in which more jobs may wait; it is filled once and copied each time."""

    def measure(_: Path) -> float:
        with new_database(server_url, template=filled) as url:
            checkpoint(url)
            return rate(probed("drain", url, count))

    return measure


def drained_for(server_url: str, filled: str, seconds: int, keep: Keep, *, pinned: bool) -> Measure:
    """For a given time, with or without another client that keeps an old snapshot."""

    def measure(_: Path) -> float:
        with new_database(server_url, template=filled) as url:
            checkpoint(url)
            with pinned_snapshot(url) if pinned else nullcontext():
                figures = probed("drain_for", url, seconds)
        keep(figures)
        return rate_of([figures], figures["count"])

    return measure


def submitted(server_url: str, probe: str, count: int) -> Measure:
    def measure(_: Path) -> float:
        with new_database(server_url) as url:
            checkpoint(url)
            return rate(probed(probe, url, count))

    return measure


def picked_up(server_url: str, probe: str, count: int, keep: Keep) -> Measure:
    """The median, in milliseconds."""

    def measure(_: Path) -> float:
        with new_database(server_url) as url:
            checkpoint(url)
            figures = probed(probe, url, count)
        keep(figures)
        return median(figures["waits_ms"])

    return measure


def raw_pickup(server_url: str, count: int) -> Measure:
    """The median, in milliseconds."""

    def measure(_: Path) -> float:
        with new_database(server_url) as url:
            checkpoint(url)
            command = [sys.executable, "-m", "benchmarks.postgres.raw", "pickup", url, str(count)]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return median(json.loads(found)["waits_ms"])

    return measure


# -- peers ----------------------------------------------------------------------------------------------------------


def peer(
    server_url: str, peer: Peer, setup: Setup, count: int, workers: int = 1, keep_start: KeepStart = keep_nothing
) -> Measure:
    draining = [sys.executable, "-m", peer.module, "drain"]

    def measure(_: Path) -> float:
        with peer_database(server_url, peer) as url:
            subprocess.run([sys.executable, "-m", peer.module, "fill", url, str(count)], check=True)
            if not peer.has_own_server:
                rest(url)
            found = run_together([[*draining, url, json.dumps(setup._asdict())]] * workers)
        keep_start(start_seconds(found))
        return rate_of(found, count)

    return measure


@contextmanager
def peer_database(server_url: str, peer: Peer) -> Iterator[str]:
    if not peer.has_own_server:
        with new_database(server_url) as url:
            yield url
        return
    with valkey_server() as server:
        yield server.url


def raw_inserts(server_url: str, count: int, verb: str = "insert") -> Measure:
    def measure(_: Path) -> float:
        with new_database(server_url) as url:
            checkpoint(url)
            return rate(figures_of(RAW.module, verb, url, count))

    return measure


def best_setup(server_url: str, who: Peer, count: int, repeats: int, workers: int = 1) -> Setup:
    """Try every setup and take the fastest."""
    say(f"  looking for the best setup of {who.name}, processes: {workers}")
    setups = {str(setup): setup for setup in who.setups}
    measures = {name: peer(server_url, who, setup, count, workers) for name, setup in setups.items()}
    found = in_turns(measures, repeats)
    return setups[max(found, key=lambda name: median(found[name]))]
