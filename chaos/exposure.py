"""For each safeguard, the faults with which a short round detects its absence."""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, NamedTuple

from chaos.faults.fault import Fault
from chaos.faults.file import Hold
from chaos.faults.network import Blackhole, Delay, Trap
from chaos.faults.process import Freeze
from chaos.faults.replica_set import PowerCut
from chaos.faults.server import Crash
from chaos.plan import Planned
from chaos.stage import GROUPS, Scale

EAST, WEST = ((group,) for group in GROUPS)
PAUSE_SECONDS = 1.0


class Exposure(NamedTuple):
    faults: Callable[[Scale], list[Fault[Any]]]
    noticed_by: tuple[str, ...]
    """The rules, one of which must be violated."""


def lost_replies(scale: Scale) -> list[Fault[Any]]:
    """Of jobs without a key: a key would find the first job, whatever ids the repetition has."""
    return [Trap(GROUPS, 0.01, "submit_one", 5)]


def late_arrivals(scale: Scale) -> list[Fault[Any]]:
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


def late_writers(scale: Scale) -> list[Fault[Any]]:
    """No lease can be renewed, and all handlers continue. Afterwards the first worker that writes takes the jobs of the
    others, which still run them or want to settle them. A frozen worker would be late, too, but its handlers have
    little left to do when it continues."""
    return [Hold(round(1.1 * scale.lease, 2))]


ON_SQLITE: dict[str, Exposure] = {
    "submit_hopefully": Exposure(lambda scale: [Hold(1.2 * scale.busy)], ("acknowledged_is_stored",)),
    "unrenewed": Exposure(lambda scale: [Hold(0.3)], ("the_well_keep_their_leases",)),
    "loss_untold": EXPOSURES["loss_untold"]._replace(faults=late_writers),
    "settle_any_token": EXPOSURES["settle_any_token"]._replace(faults=late_writers),
    "checkpoint_any_token": EXPOSURES["checkpoint_any_token"]._replace(faults=late_writers),
    "reclaim_early": EXPOSURES["reclaim_early"]._replace(faults=lambda scale: [Hold(0.3)]),
}
"""Only `submit_anew` is missing: it needs a lost reply, which a file never causes."""


ON_MONGODB: dict[str, Exposure] = {
    **{name: exposure for name, exposure in EXPOSURES.items() if name != "submit_anew"},
    "submit_hopefully": EXPOSURES["submit_hopefully"]._replace(faults=lambda scale: [PowerCut(6.0)]),
}
"""Only `submit_anew` is missing: the store itself sends a commit again whose reply is lost."""


def exposing(sabotage: str, scale: Scale, store: str = "postgres") -> Iterator[Planned]:
    """Never ends."""
    exposures = {"postgres": EXPOSURES, "sqlite": ON_SQLITE, "mongodb": ON_MONGODB}[store]
    for fault in cycle(exposures[sabotage].faults(scale)):
        yield Planned(PAUSE_SECONDS, fault)
