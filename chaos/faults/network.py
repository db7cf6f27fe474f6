"""Faults of the network, injected by the proxies of one group or of both."""

import asyncio
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar, Self

from chaos.faults.fault import Fault, between, some_groups
from chaos.stage import NetworkStage, Scale

TRAP_SECONDS_MAX = 3.0
"""How long a trap waits for its statement: some verbs are rare."""
VERBS = ("exchange(", "submit_one", "submit_uniform", "submit(", "renew(", "checkpoint(")
COMMANDS = ("committransaction", "committransaction", "insert", "update", "aggregate", "find")
"""Of MongoDB. The reply to a commit is the one that decides, so it is lost more often."""


class OfNetwork(Fault[NetworkStage], frozen=True):
    groups: tuple[str, ...]
    seconds: float

    def hits(self, stage: NetworkStage) -> list[str]:
        return stage.fleet.names(self.groups)

    def where(self) -> str:
        return " and ".join(self.groups)


class Blackhole(OfNetwork, frozen=True):
    """Nothing goes through. In the end everything arrives late, or the connections turn out to be dead."""

    ends_in_reset: bool
    name: ClassVar[str] = "blackhole"

    @classmethod
    def dealt(cls, chance: random.Random, scale: Scale) -> Iterator[Self]:
        """Each length once before a length repeats: few rounds last long enough for chance alone."""
        lengths = hole_lengths(scale)
        while True:
            for least, most in chance.sample(lengths, len(lengths)):
                yield cls.of_length(chance, least, most)

    @classmethod
    def of_length(cls, chance: random.Random, least: float, most: float) -> Self:
        return cls(some_groups(chance), between(chance, least, most), chance.random() < 0.5)

    def what(self) -> str:
        end = "and connections turn out to be dead" if self.ends_in_reset else "and everything arrives late"
        return f"{self.where()}: nothing goes through for {self.seconds} s, {end}"

    async def strike(self, stage: NetworkStage) -> str:
        proxies = stage.proxies_of(self.groups)
        for proxy in proxies:
            proxy.hold()
        try:
            await asyncio.sleep(self.seconds)
        finally:
            for proxy in proxies:
                if self.ends_in_reset:
                    proxy.reset()
                proxy.release()
        return ""


class Bury(Blackhole, frozen=True):
    """A blackhole with a kill -9 in the middle: the successor has to start while nothing goes through."""

    role: str
    victim: int
    name: ClassVar[str] = "bury"

    @classmethod
    def of_length(cls, chance: random.Random, least: float, most: float) -> Self:
        role = chance.choices(["worker", "submitter"], [4, 1])[0]
        return cls(
            some_groups(chance), between(chance, least, most), chance.random() < 0.5, role, chance.randrange(100)
        )

    def what(self) -> str:
        return f"{super().what()}; in the midst of it kill -9 of a {self.role}, and another one"

    async def strike(self, stage: NetworkStage) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().strike(stage))
            replacing = group.create_task(self._replace(stage))
        return replacing.result()

    async def _replace(self, stage: NetworkStage) -> str:
        await asyncio.sleep(self.seconds / 3)
        there = [each for each in stage.fleet.members(self.role) if each.place.group in self.groups]
        if not there:  # fewer workers than groups
            return ""
        victim = there[self.victim % len(there)]
        place = stage.fleet.kill(victim)
        return f"{victim.name} is dead, {stage.fleet.start(place).name} replaces it"


def hole_lengths(scale: Scale) -> list[tuple[float, float]]:
    """Ranges of lengths: short ones, in which no lease is lost; middle ones, in which the group loses all its leases;
    long ones, in which every process of the group abandons its calls and fails to reconnect.
    """
    ends = [0.1, *(end for end in (scale.lease, scale.patience) if end < scale.blackhole), scale.blackhole]
    return list(pairwise(ends))


class Reset(OfNetwork, frozen=True):
    name: ClassVar[str] = "reset"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(some_groups(chance), 0.0)

    def what(self) -> str:
        return f"{self.where()}: every connection is reset"

    async def strike(self, stage: NetworkStage) -> str:
        return f"{sum(proxy.reset() for proxy in stage.proxies_of(self.groups))} connections"


class Forget(OfNetwork, frozen=True):
    name: ClassVar[str] = "forget"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(some_groups(chance), 0.0)

    def what(self) -> str:
        return f"{self.where()}: every connection is dead, and nobody is told"

    async def strike(self, stage: NetworkStage) -> str:
        return f"{sum(proxy.forget() for proxy in stage.proxies_of(self.groups))} connections"


class Delay(OfNetwork, frozen=True):
    each: float
    name: ClassVar[str] = "delay"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(some_groups(chance), between(chance, 0.5, scale.squeeze), between(chance, 0.005, 0.3))

    def what(self) -> str:
        return f"{self.where()}: {self.each * 1000:.0f} ms for each way, for {self.seconds} s"

    async def strike(self, stage: NetworkStage) -> str:
        proxies = stage.proxies_of(self.groups)
        for proxy in proxies:
            proxy.delay(self.each)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            for proxy in proxies:
                proxy.delay(0)
        return ""


class Swallow(OfNetwork, frozen=True):
    """At a moment of its own, whatever is in transit then."""

    times: int
    name: ClassVar[str] = "swallow"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(some_groups(chance), between(chance, 0.005, 0.2), chance.randint(1, 5))

    def what(self) -> str:
        return f"{self.where()}: answers vanish for {self.seconds * 1000:.0f} ms, then resets; {self.times} times"

    async def strike(self, stage: NetworkStage) -> str:
        proxies = stage.proxies_of(self.groups)
        before = sum(proxy.answers_lost for proxy in proxies)
        for _ in range(self.times):
            for proxy in proxies:
                proxy.swallow(self.seconds)
            await asyncio.sleep(self.seconds + 0.2)
        return f"{sum(proxy.answers_lost for proxy in proxies) - before} connections lost an answer"


class Trap(OfNetwork, frozen=True):
    """The next call of a certain verb is executed and its reply is lost; several times in a row."""

    verb: str
    times: int
    name: ClassVar[str] = "trap"
    verbs: ClassVar[tuple[str, ...]] = VERBS

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(some_groups(chance), between(chance, 0.001, 0.1), chance.choice(cls.verbs), chance.randint(1, 5))

    def what(self) -> str:
        return f"{self.where()}: {self.verb.rstrip('(')} is executed and its answer vanishes, {self.times} times"

    async def strike(self, stage: NetworkStage) -> str:
        sprung = 0
        for _ in range(self.times):
            traps = stage.trap(self.groups, self.verb, self.seconds)
            waited = 0.0
            while not all(trap.is_sprung for trap in traps) and waited < TRAP_SECONDS_MAX / self.times:
                await asyncio.sleep(0.02)
                waited += 0.02
            sprung += sum(trap.is_sprung for trap in traps)
        for proxy in stage.proxies_of(self.groups):
            proxy.disarm()
        await asyncio.sleep(self.seconds)
        return f"{sprung} answers lost"


class TrapCommand(Trap, frozen=True):
    """The same with a command of MongoDB. A transaction whose connection is cut stays open on the server."""

    name: ClassVar[str] = "trap"
    verbs: ClassVar[tuple[str, ...]] = COMMANDS
