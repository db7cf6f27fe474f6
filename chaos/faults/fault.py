"""What every fault can do."""

import random
from collections.abc import Iterator
from typing import ClassVar, Self

from msgspec import Struct

from chaos.stage import GROUPS, Scale, Stage


class Fault(Struct, frozen=True):
    name: ClassVar[str]

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        """One of its kind, with everything about it decided."""
        raise NotImplementedError

    @classmethod
    def dealt(cls, chance: random.Random, scale: Scale) -> Iterator[Self]:
        """Endless: those of its kind that a round meets, one after the other; each by itself, unless the fault has
        an order."""
        while True:
            yield cls.drawn(chance, scale)

    def what(self) -> str:
        """What will happen, in a few words."""
        raise NotImplementedError

    def hits(self, stage: Stage) -> list[str]:
        """The processes that may suffer: all, unless the fault says otherwise."""
        return stage.fleet.names()

    async def strike(self, stage: Stage) -> str:
        """Do it, let it last, heal it; what came of it, if that is worth a word."""
        raise NotImplementedError


def some_groups(chance: random.Random) -> tuple[str, ...]:
    return chance.choice([GROUPS, *((group,) for group in GROUPS)])


def between(chance: random.Random, least: float, most: float) -> float:
    """Short ones as often as long ones: each power of ten is as likely as the next."""
    return round(float(least * (most / least) ** chance.random()), 2)
