"""From a seed to a schedule: which fault comes when, and how hard."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from chaos.faults.fault import Fault
from chaos.faults.file import FreezeWriter, Full, Grip, Hold, Read, Vacuum
from chaos.faults.network import Blackhole, Bury, Delay, Forget, Reset, Swallow, Trap, TrapCommand
from chaos.faults.process import Freeze, Kill
from chaos.faults.replica_set import FillPrimary, FreezePrimary, KillPrimary, LoseMajority, PowerCut, StepDown
from chaos.faults.server import Cancel, Crash, Lock, Refuse, Restart, Terminate, Timeouts
from chaos.stage import Scale

KINDS: dict[str, tuple[type[Fault[Any]], ...]] = {
    "postgres": (
        *(Kill, Freeze),
        *(Crash, Restart, Terminate, Cancel, Timeouts, Lock, Refuse),
        *(Blackhole, Bury, Reset, Forget, Delay, Swallow, Trap),
    ),
    "sqlite": (Kill, FreezeWriter, Grip, Hold, Read, Vacuum, Full),
    "mongodb": (
        *(Kill, Freeze),
        *(KillPrimary, StepDown, FreezePrimary, PowerCut, LoseMajority, FillPrimary),
        *(Blackhole, Bury, Reset, Forget, Delay, Swallow, TrapCommand),
    ),
}
FAULTS: dict[str, dict[str, type[Fault[Any]]]] = {
    store: {kind.name: kind for kind in kinds} for store, kinds in KINDS.items()
}
"""The faults of each store, by name."""


class Planned(NamedTuple):
    pause_seconds: float
    fault: Fault[Any]


def schedule(seed: str, scale: Scale, names: Sequence[str] = (), store: str = "postgres") -> Iterator[Planned]:
    """Never ends. Like a deck of cards that is shuffled again when it is used up, so that every fault occurs."""
    chance = random.Random(f"{seed}:nemesis")
    deck = [FAULTS[store][name] for name in (names or FAULTS[store])]
    dealers = {kind: kind.dealt(chance, scale) for kind in deck}
    while True:
        chance.shuffle(deck)
        for kind in deck:
            yield Planned(round(chance.uniform(*scale.pause), 2), next(dealers[kind]))
