"""Every limiter answers as the one in memory does: in lives that Hypothesis invents, and in one recorded for good."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.limits.conftest import OPENINGS
from tests.limits.lives import BEGINNING, HOLDERS, NAMES, NUMBER_MAX, OFTEN, SPANS_US, Life, Step

from leaseway.ports.limiter import Limiter
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.stores.sqlite.limits import SqliteLimiter
from leaseway.testing.clock import FakeClock

TRACE = Path(__file__).parent / "trace.json"
TRACE_STEPS = 800

names = st.lists(st.sampled_from(list(NAMES)), min_size=1, max_size=3, unique=True).map(tuple)
steps = st.builds(
    Step,
    verb=st.sampled_from([verb for verb, often in OFTEN.items() for _ in range(often)]),
    names=names,
    number=st.integers(0, NUMBER_MAX),
    least=st.integers(1, 3),
    holder=st.sampled_from(HOLDERS),
    us=st.sampled_from(SPANS_US),
)


class TwoLimiters(RuleBasedStateMachine):
    """The same step on both, and the same answer."""

    can_restart: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.starts = 0
        self.clocks = FakeClock(), FakeClock()
        self.memory = MemoryLimiter(self.clocks[0].now_us)
        self.lives = Life(self.memory, self.clocks[0]), Life(self.opened(), self.clocks[1])
        for step in BEGINNING:
            self.live(step)

    def opened(self) -> Limiter:
        raise NotImplementedError

    def teardown(self) -> None:
        self.runner.run(self.lives[1].limiter.close())
        self.runner.close()
        self.folder.cleanup()

    @rule(some=st.lists(steps, min_size=1, max_size=8))
    def happen(self, some: list[Step]) -> None:
        for step in some:
            self.live(step)

    def live(self, step: Step) -> None:
        expected, actual = (self.runner.run(life.live(step)) for life in self.lives)
        assert actual == expected, f"{step}: {actual} is not {expected}"

    @precondition(lambda self: self.can_restart)
    @rule()
    def restart(self) -> None:
        """The machine was started anew: a fence."""
        self.memory.fence()
        self.runner.run(self.lives[1].limiter.close())
        self.starts += 1
        self.lives[1].limiter = self.opened()


class Sqlite(TwoLimiters):
    can_restart = True

    def opened(self) -> Limiter:
        path = str(Path(self.folder.name) / "work.db")
        limiter = SqliteLimiter(path, self.clocks[1].now_us, f"start {self.starts}", durable=False, inline=True)
        self.runner.run(limiter.open())
        return limiter


TestSqlite = Sqlite.TestCase
TestSqlite.settings = settings(
    max_examples=20,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,  # the same lives in every run: a red build means a change, not a die
    suppress_health_check=[HealthCheck.too_slow],
)


# -- one life for good ----------------------------------------------------------------------------------------------


def invented(chance: Random, often: Mapping[str, int]) -> Step:
    return Step(
        verb=chance.choices(list(often), list(often.values()))[0],
        names=tuple(chance.sample(list(NAMES), chance.randint(1, 3))),
        number=chance.randint(0, NUMBER_MAX),
        least=chance.randint(1, 3),
        holder=chance.choice(HOLDERS),
        us=chance.choice(SPANS_US),
    )


def recorded_steps() -> list[Step]:
    """Chance with a seed that never changes."""
    chance = Random("a life of limits")
    return BEGINNING + [invented(chance, OFTEN) for _ in range(TRACE_STEPS)]


async def answers(life: Life) -> list[Any]:
    return [msgspec.to_builtins(await life.live(step), str_keys=True) for step in recorded_steps()]


def record() -> None:
    """`python -m tests.limits.test_lives`, after a change that is meant to change answers."""
    clock = FakeClock()
    given = asyncio.run(answers(Life(MemoryLimiter(clock.now_us), clock)))
    lines = ",\n".join(json.dumps(answer, separators=(",", ":")) for answer in given)
    TRACE.write_text(f"[\n{lines}\n]\n", "utf-8")


async def test_every_limiter_gives_the_recorded_answers(limiter: Limiter, clock: FakeClock) -> None:
    """What was decided yesterday is decided today, on every store: workers of two versions share one fleet."""
    recorded = json.loads(TRACE.read_text("utf-8"))
    given = await answers(Life(limiter, clock))
    for step, answer, expected in zip(recorded_steps(), given, recorded, strict=True):
        assert json.loads(json.dumps(answer)) == expected, step


def test_the_recorded_life_is_rich() -> None:
    """A life in which nothing is granted, refused or impossible would prove nothing."""
    recorded = json.loads(TRACE.read_text("utf-8"))
    verdicts = [answer for step, answer in zip(recorded_steps(), recorded, strict=True) if step.verb == "take"]
    kinds = ["granted_at", "wait_us", "most"]
    counts = [sum(isinstance(verdict, dict) and kind in verdict for verdict in verdicts) for kind in kinds]
    assert min(counts) >= 15, dict(zip(kinds, counts, strict=True))
    assert verdicts.count("unknown") >= 15


# -- the same for stores on servers ---------------------------------------------------------------------------------

SERVERS = sorted(set(OPENINGS) - {"memory", "sqlite"})
LIVES = [(name, seed) for name in SERVERS for seed in range(1 if name == "http" else 8)]
"""Behind HTTP it is memory that counts: one life shows that every word arrives."""


@asynccontextmanager
async def two(request: pytest.FixtureRequest, name: str, folder: Path) -> AsyncIterator[tuple[Life, Life]]:
    clocks = FakeClock(), FakeClock()
    async with OPENINGS[name](request, clocks[1], folder) as limiter:
        yield Life(MemoryLimiter(clocks[0].now_us), clocks[0]), Life(limiter, clocks[1])


@pytest.mark.parametrize(("name", "seed"), LIVES)
async def test_servers_live_as_memory_does(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, seed: int
) -> None:
    """Their arithmetic is written in other languages: step by step it must come to the same."""
    chance = Random(seed)
    often = {verb: often * chance.choice((0, 1, 2)) for verb, often in OFTEN.items()} | {"take": 20, "advance": 5}
    async with two(request, name, tmp_path) as (memory, server):
        for step in BEGINNING:
            assert await server.live(step) == await memory.live(step)
        for number in range(300):
            step = invented(chance, often)
            assert await server.live(step) == await memory.live(step), (number, step)


if __name__ == "__main__":
    record()
