"""For each safeguard, the faults with which a short round detects its absence."""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import NamedTuple

from chaos.faults.fault import Fault
from chaos.faults.network import Blackhole, Delay, Trap
from chaos.faults.process import Freeze
from chaos.faults.server import Crash
from chaos.plan import Planned
from chaos.stage import GROUPS, Scale

EAST, WEST = ((group,) for group in GROUPS)
PAUSE_SECONDS = 1.0


class Exposure(NamedTuple):
    faults: Callable[[Scale], list[Fault]]
    noticed_by: tuple[str, ...]
    """The rules, one of which must be violated."""


def lost_replies(scale: Scale) -> list[Fault]:
    """Of jobs without a key: a key would find the first job, whatever ids the repetition has."""
    return [Trap(GROUPS, 0.01, "submit_one", 5)]


def late_arrivals(scale: Scale) -> list[Fault]:
    """Just long enough that another worker holds the jobs, and still runs them, when the first one continues."""
    seconds = round(1.2 * scale.lease, 2)
    return [Blackhole(EAST, seconds, False), Freeze("worker", 0, seconds), Blackhole(WEST, seconds, False)]


EXPOSURES: dict[str, Exposure] = {
    "submit_anew": Exposure(lost_replies, ("one_job_for_each_label",)),
    "submit_hopefully": Exposure(lambda scale: [Crash(0.5)], ("acknowledged_is_stored",)),
    "unrenewed": Exposure(lambda scale: [Delay(EAST, 0.5, 0.01)], ("the_well_keep_their_leases",)),
    "loss_untold": Exposure(late_arrivals, ("nobody_runs_on_unaware",)),
    "settle_any_token": Exposure(
        late_arrivals, ("one_accepted_result", "late_settlements_are_refused", "the_result_is_the_last_holders")
    ),
    "checkpoint_any_token": Exposure(late_arrivals, ("late_cursors_are_refused", "a_kept_cursor_is_found_again")),
    "reclaim_early": Exposure(lambda scale: [Delay(EAST, 0.5, 0.01)], ("one_live_lease", "the_well_keep_their_leases")),
}


def exposing(sabotage: str, scale: Scale) -> Iterator[Planned]:
    """Never ends."""
    for fault in cycle(EXPOSURES[sabotage].faults(scale)):
        yield Planned(PAUSE_SECONDS, fault)
