"""What every fault can do."""

import random
from collections.abc import Iterator
from typing import ClassVar, Generic, Self, TypeVar

from msgspec import Struct

from chaos.stage import GROUPS, Scale, Stage

S = TypeVar("S", bound=Stage)


class Fault(Struct, Generic[S], frozen=True):
    name: ClassVar[str]

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        """One fault of its kind, with all its parameters decided."""
        raise NotImplementedError

    @classmethod
    def dealt(cls, chance: random.Random, scale: Scale) -> Iterator[Self]:
        """Never ends: the faults of its kind that a round injects, in order; independent of each other, unless the kind
        has an order.
        """
        while True:
            yield cls.drawn(chance, scale)

    def what(self) -> str:
        """What will happen, in a few words."""
        raise NotImplementedError

    def hits(self, stage: S) -> list[str]:
        """The processes that the fault may affect: all, unless the fault says otherwise."""
        return stage.fleet.names()

    async def strike(self, stage: S) -> str:
        """Inject it, wait, heal it; returns a note for the history, if there is one."""
        raise NotImplementedError


def some_groups(chance: random.Random) -> tuple[str, ...]:
    return chance.choice([GROUPS, *((group,) for group in GROUPS)])


def between(chance: random.Random, least: float, most: float) -> float:
    """Durations on a logarithmic scale: each power of ten is equally likely."""
    return round(float(least * (most / least) ** chance.random()), 2)
