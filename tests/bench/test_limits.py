"""The benchmarks of limits run and count correctly. Measured values are not checked: this machine may be busy."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.limits.cases import CASES, errors, others_at_worst, worst_of
from benchmarks.limits.counting import Counted, in_virtual_time, sustained
from benchmarks.limits.failover import pair
from benchmarks.limits.peers import IN_PROCESS, PEERS
from benchmarks.limits.tenants import LARGE, SMALL, Start, jain, judged
from benchmarks.limits.windows import Seen, seen, steady

from leaseway.domain.limits.limit import Limit, PermitRequest
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.testing.clock import FakeClock

ROOT = Path(__file__).parents[2]


def is_missing(package: str) -> bool:
    return find_spec(package) is None


LONG = {"limits_windows", "limits_calls", "limits_spent", "limits_acquiring", "limits_refused"}
"""Cases that are left out because together they take two minutes."""


@pytest.mark.campaign
@pytest.mark.timeout(420)
@pytest.mark.parametrize("case", [case for case in CASES if case not in LONG])
def test_a_quick_run_of_the_suite_ends_with_its_figures(case: str) -> None:
    """Otherwise a broken benchmark would be noticed only when a release needs its figures."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--suite", "limits", case]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert answer.returncode == 0, answer.stderr
    assert f"./dev bench --quick --suite limits {case}" in answer.stdout
    assert "PostgreSQL 1" in answer.stdout


@pytest.mark.slow
@pytest.mark.parametrize("who", [*PEERS, IN_PROCESS])
def test_a_peer_sends_what_its_limit_allows(who: str) -> None:
    """A wrongly configured peer that sends nothing would look safe; one without a limit would look bad."""
    package = PEERS[who].package if who in PEERS else who
    if is_missing(package):
        pytest.skip(f"{package} is in the group bench: ./dev bench installs it")
    with steady() as stage:
        found = seen(who, stage, 4.0)
    assert 20 <= found.most <= 60
    assert not found.errors


@pytest.mark.slow
def test_after_a_failover_the_url_leads_to_a_replica_that_lags() -> None:
    """The benchmark shows lost writes only if the replica is reachable and has missed some."""
    redis = pytest.importorskip("redis")
    with pair() as servers, redis.Redis.from_url(servers.url) as client:
        client.set("before", 1)
        client.execute_command("WAIT", 1, 5_000)
        servers.part()
        client.set("after", 1)
        servers.fail_over()
        with redis.Redis.from_url(servers.url) as again:
            assert again.mget("before", "after") == [b"1", None]


async def test_every_call_is_counted_except_definitions() -> None:
    """Calls that are not counted would make leaseway look cheaper than it is."""
    limiter = Counted(MemoryLimiter(FakeClock().now_us))
    await limiter.definitions.declare([Limit("maps", "20 per 2 s").definition])
    for _ in range(3):
        await limiter.acquire([PermitRequest("maps", "maps")])
    await limiter.levels([PermitRequest("maps", "maps")])
    assert limiter.calls == 4


def test_virtual_time_counts_what_the_bucket_gives() -> None:
    """The usable share of a limit is computed, so it must be the same in every run and never exceed the limit."""
    first, second = (in_virtual_time(sustained("60/minute", 60)) for _ in range(2))
    assert first == second
    assert 45 <= first.sent <= 60


def test_jains_index_knows_equal_and_unequal() -> None:
    """The promise of fairness between tenants is stated as this index."""
    assert jain([5, 5, 5, 5]) == 1
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)


def test_service_counts_only_while_all_have_work() -> None:
    """Jobs of the large tenant that run while no other tenant has work do not make the result unfair."""
    both = [Start(tenant, 0, at_ns) for at_ns in range(3) for tenant in (LARGE, *SMALL)]
    alone = [Start(LARGE, 0, at_ns) for at_ns in range(3, 1_000)]
    later = [Start(SMALL[0], 5_000_000, 7_000_000)]
    found = judged([*both, *alone, *later])
    assert found.jain == 1
    assert found.counted == len(both)
    assert (found.wait_p99_ms, found.waits) == (2, 1)


def test_the_worst_round_counts_for_each() -> None:
    """A limiter that exceeds the limit in one of three rounds does not keep it."""
    rounds = [{"limits": Seen(20, 50, 0)}, {"limits": Seen(31, 50, 0)}, {"limits": Seen(19, 50, 0)}]
    assert worst_of(rounds)["limits"].most == 31
    (figure,) = others_at_worst({"steady": worst_of(rounds), "killed": rounds[0]})
    assert figure.value == 31 / 20
    assert "limits 1.55: steady" in figure.note


def test_a_limiter_with_errors_is_reported() -> None:
    """A broken limiter never exceeds the limit, because it sends nothing."""
    assert "5,000 errors" in errors(Seen(20, 23, 5_000))
    assert errors(Seen(20, 60, 3)) == ""
