"""Real processes, killed at random while they hold, call and settle: actual spending must never exceed a budget."""

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.budgets.spender import DEFINITIONS, LIMITS, opened

from leaseway.domain.budgets.balances import BudgetWindow
from leaseway.domain.budgets.budget import MICRO
from leaseway.ports.ledger import Ledger
from leaseway.testing.mongodb import MongoServer
from leaseway.testing.postgres import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKERS = 3
KILLS = 12
SECONDS_MAX = 250.0
ROOT = Path(__file__).parents[2]


class Fleet:
    def __init__(self, address: str, provider: Path, sabotage: tuple[str, ...]) -> None:
        self._address, self._provider, self._sabotage = address, provider, sabotage
        self._chance = random.Random(7)
        self._started = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def fill(self) -> None:
        while len(self._processes) < WORKERS:
            self._started += 1
            arguments = [self._address, str(self._provider), f"worker-{self._started}", *self._sabotage]
            command = [sys.executable, "-m", "tests.budgets.spender", *arguments]
            self._processes.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE))

    def kill_one(self) -> None:
        """Send SIGKILL, so that the process cannot clean up."""
        victim = self._processes.pop(self._chance.randrange(len(self._processes)))
        assert victim.poll() is None, victim.stderr and victim.stderr.read().decode()
        self._end(victim)

    def pause(self) -> None:
        time.sleep(self._chance.uniform(0.3, 1.2))

    def end(self) -> None:
        while self._processes:
            self._end(self._processes.pop())

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.communicate()


@contextmanager
def fleet(address: str, provider: Path, *sabotage: str) -> Iterator[Fleet]:
    provider.touch()
    running = Fleet(address, provider, sabotage)
    try:
        yield running
    finally:
        running.end()


def truly_spent(provider: Path) -> Counter[str]:
    """Spending per budget, from the provider's file. Each line is a single write, so no line is incomplete."""
    spent: Counter[str] = Counter()
    for line in provider.read_text().splitlines():
        tenant, cost = line.split()
        spent[tenant] += int(cost)
        spent["provider"] += int(cost)
    return spent


async def swept(ledger: Ledger) -> dict[str, BudgetWindow]:
    """The balances after all open holds are settled."""
    deadline = time.monotonic() + 120
    while True:
        await ledger.expire(1_000)
        accounts = {account.name: account for account in await ledger.reads.balances()}
        if not any(account.balance.held_micros for account in accounts.values()):
            return accounts
        assert time.monotonic() < deadline, "something stays held for ever"
        await asyncio.sleep(0.05)


async def campaign(address: str, provider: Path) -> None:
    async with opened(address) as ledger:
        await ledger.definitions.declare(DEFINITIONS)
        with fleet(address, provider) as workers:
            kills, deadline = 0, time.monotonic() + SECONDS_MAX
            while kills < KILLS or not await is_used_up(ledger):
                assert time.monotonic() < deadline, "the budget was never used up"
                workers.fill()
                await asyncio.to_thread(workers.pause)
                workers.kill_one()
                kills += 1
                assert overspent(provider) == []
        accounts = await swept(ledger)
        assert overspent(provider) == []
        for name, cost in truly_spent(provider).items():
            book = accounts[name].balance
            assert cost <= book.spent_micros <= LIMITS[name] * MICRO, f"{name}: {book}"
            assert book.overdraft_micros == 0
        assert (await ledger.reads.audit()).wrong() == []
        kinds = Counter(entry.kind for entry in await ledger.reads.journal("provider", 100_000))
        assert {"hold", "settle", "capture", "expire"} <= set(kinds), kinds


async def is_used_up(ledger: Ledger) -> bool:
    (account,) = await ledger.reads.balances(["provider"])
    return account.balance.spent_micros > 0.9 * account.balance.limit_micros


def overspent(provider: Path) -> list[str]:
    return [f"{name}: {cost}" for name, cost in truly_spent(provider).items() if cost > LIMITS[name] * MICRO]


async def test_workers_killed_at_random_never_overspend_in_sqlite(tmp_path: Path) -> None:
    """The provider's file is the independent reference."""
    await campaign(str(tmp_path / "work.db"), tmp_path / "provider")


async def test_workers_killed_at_random_never_overspend_in_postgresql(server: PostgresServer, tmp_path: Path) -> None:
    """The same must hold for a server, whose clock decides."""
    await campaign(f"{server.url}?schema=campaign", tmp_path / "provider")


async def test_workers_killed_at_random_never_overspend_in_mongodb(mongodb: MongoServer, tmp_path: Path) -> None:
    """There a killed worker may leave a transaction behind, with which the others conflict."""
    await campaign(mongodb.url.replace("/leaseway?", "/campaign?"), tmp_path / "provider")


async def test_refunding_what_may_have_been_called_overspends_in_a_fleet(tmp_path: Path) -> None:
    """The same fleet without the rule must overspend, or the campaign proves nothing."""
    provider = tmp_path / "provider"
    async with opened(str(tmp_path / "work.db")) as ledger:
        await ledger.definitions.declare(DEFINITIONS)
    with fleet(str(tmp_path / "work.db"), provider, "refunding") as workers:
        deadline = time.monotonic() + SECONDS_MAX
        while not overspent(provider):
            assert time.monotonic() < deadline, "a fleet that refunds what it does not know was not caught"
            workers.fill()
            await asyncio.to_thread(workers.pause)
