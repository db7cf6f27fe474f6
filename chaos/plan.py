"""From a seed to a schedule: which fault comes when, and how hard."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from chaos.faults.fault import Fault
from chaos.faults.network import Blackhole, Bury, Delay, Forget, Reset, Swallow, Trap
from chaos.faults.process import Freeze, Kill
from chaos.faults.server import Cancel, Crash, Lock, Refuse, Restart, Terminate, Timeouts
from chaos.stage import Scale

KINDS: tuple[type[Fault], ...] = (
    *(Kill, Freeze),
    *(Crash, Restart, Terminate, Cancel, Timeouts, Lock, Refuse),
    *(Blackhole, Bury, Reset, Forget, Delay, Swallow, Trap),
)
FAULTS: dict[str, type[Fault]] = {kind.name: kind for kind in KINDS}


class Planned(NamedTuple):
    pause_seconds: float
    fault: Fault


def schedule(seed: str, scale: Scale, names: Sequence[str] = ()) -> Iterator[Planned]:
    """Never ends. Like a deck of cards that is shuffled again when it is used up, so that every fault occurs."""
    chance = random.Random(f"{seed}:nemesis")
    deck = [FAULTS[name] for name in (names or FAULTS)]
    dealers = {kind: kind.dealt(chance, scale) for kind in deck}
    while True:
        chance.shuffle(deck)
        for kind in deck:
            yield Planned(round(chance.uniform(*scale.pause), 2), next(dealers[kind]))
