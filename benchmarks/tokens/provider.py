"""A language model with true sliding windows: `python -m benchmarks.tokens.provider RATE SECONDS` prints its URL, and
when its input ends, what it has seen as JSON.

A call takes 1 to 3 seconds and uses 30 % of 4,000 tokens on average. The tokens of a call count when it arrives; the
fullest window is reported by arrivals and by completions, whichever is more.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from leaseway.bench.processes import Figures
from leaseway.domain.limits.limit import Rate, parse_rate
from leaseway.testing.models import ModelProvider
from leaseway.testing.provider import SECOND_NS, Answer, ReceivedRequest, serving

TOKENS_MAX, MEAN_SHARE, SHAPE = 4_000, 0.3, 4
PROMPT_MAX, SEED = 50, 19


class BusyModel(ModelProvider):
    def __init__(self, rate: Rate) -> None:
        super().__init__([], [rate], 1.0, TOKENS_MAX)
        self.rate = rate
        self._chance = Random(SEED)

    def usual(self, request: ReceivedRequest) -> Answer:
        self._seconds = self._chance.uniform(1, 3)
        output = int(self._chance.gammavariate(SHAPE, TOKENS_MAX * MEAN_SHARE / SHAPE))
        self._output = max(min(output, TOKENS_MAX - PROMPT_MAX), 1)
        return super().usual(request)

    def report(self, seconds: float) -> Figures:
        """Use counts from a window after the first arrival, when the limit is in steady use, until these seconds after
        it."""
        window_ns, first = self.rate.window_us * 1_000, self.uses[0].began_ns if self.uses else 0
        since, until = first + window_ns, first + round(seconds * SECOND_NS)
        steady = sum(use.tokens for use in self.uses if since <= use.began_ns < until)
        windows = max(until - since, 1) / window_ns
        return {
            "used": steady / (self.rate.count * windows),
            "fullest": self.most_tokens_in_any_window(window_ns / SECOND_NS) / self.rate.count,
            "refused": self.refused,
            "calls": len(self.uses),
        }


async def serve(rate: Rate, seconds: float) -> None:
    async with serving(BusyModel(rate)) as it:
        print(it.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        print(json.dumps(it.report(seconds)), flush=True)


class Running:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().decode().strip()

    def report(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def running_model(rate: str, seconds: float) -> Iterator[Running]:
    pipe, command = subprocess.PIPE, [sys.executable, "-m", "benchmarks.tokens.provider", rate, str(seconds)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        yield Running(process)


if __name__ == "__main__":
    asyncio.run(serve(parse_rate("rate", sys.argv[1]), float(sys.argv[2])))
