"""How contestants are compared: in turns, with fresh files, by the median.

A benchmark in which one contestant always runs second measures the warm cache. So the contestants take turns, and each
round starts with another one.
"""

import operator
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

Measure = Callable[[Path], float]
"""A contestant: gets a folder of its own, returns one number."""

AT_LEAST, AT_MOST, BELOW = "≥", "≤", "<"
MEETS = {AT_LEAST: operator.ge, AT_MOST: operator.le, BELOW: operator.lt}


class Target(NamedTuple):
    sign: str
    value: float

    def is_met(self, value: float) -> bool:
        return bool(MEETS[self.sign](value, self.value))


class Figure(NamedTuple):
    """One line of the results."""

    what: str
    value: float
    unit: str
    target: Target | None = None
    note: str = ""
    with_start: float | None = None
    """The same value if the start of the processes counts."""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "met" if self.target.is_met(self.value) else "MISSED"


class Measured(NamedTuple):
    """The figures of one suite, with the versions of the software that they depend on."""

    figures: list[Figure]
    software: list[str]


def orders(names: Sequence[str], repeats: int) -> list[list[str]]:
    """The order of each round: each begins one further down the list; after a full turn the list is reversed."""
    rounds = []
    for number in range(repeats):
        cycle, start = divmod(number, len(names))
        turn = [*names[start:], *names[:start]]
        rounds.append(turn[::-1] if cycle % 2 else turn)
    return rounds


def in_turns(contestants: Mapping[str, Measure], repeats: int) -> dict[str, list[float]]:
    """Every contestant's numbers, one per round."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number, turn in enumerate(orders(list(contestants), repeats), start=1):
        for name in turn:
            with TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
                value = contestants[name](Path(folder))
            found[name].append(value)
            say(f"  round {number}: {name} {shown(value)}")
    return found


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """The spread of the rounds, beside their median."""
    rounds = "one round" if len(values) == 1 else f"{len(values)} rounds"
    return f"{rounds}, {shown(min(values))} to {shown(max(values))}"


def shown(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
