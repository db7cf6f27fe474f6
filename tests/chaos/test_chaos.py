"""Every fault once, against real processes and a real store, with a fixed seed; and sabotages that must lead to
violations.
"""

import asyncio
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest
from chaos.campaign import Campaign, Round
from chaos.exposure import EXPOSURES, ON_MONGODB, ON_SQLITE, exposing
from chaos.plan import FAULTS, Planned, schedule
from chaos.sabotage import SABOTAGES
from chaos.stage import MEMBERS_LEASE_SECONDS, SHORT, Scale
from chaos.verdict import Verdict, page
from msgspec.structs import replace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

campaign = pytest.mark.campaign
"""What stays in `./dev test`: every fault on SQLite, and a missing safeguard on PostgreSQL."""

SEED = "7"


def played(folder: Path, plan: Iterable[Planned], scale: Scale, sabotage: str = "", store: str = "postgres") -> Verdict:
    round_ = Round(seed=SEED, plan=plan, scale=scale, folder=folder, workers=3, sabotage=sabotage, store=store)
    verdict = asyncio.run(Campaign(round_, print).run())
    print(*page(verdict), sep="\n")
    return verdict


@campaign
def test_nothing_is_lost_and_nothing_doubled_whatever_happens(tmp_path: Path) -> None:
    """Workers killed and frozen, the server killed, the network cut, replies lost: all within half a minute."""
    verdict = played(tmp_path, islice(schedule(SEED, SHORT), len(FAULTS["postgres"])), SHORT)
    assert verdict.violations == {}
    assert verdict.reached["jobs stored"] > 500, "there was hardly any work that could have been disturbed"
    for path in ("exchanges repeated", "handlers run again", "settlements refused", "runs resumed at a cursor"):
        assert verdict.reached[path], f"this round never got to where mistakes are made: {path}"


def test_a_file_loses_nothing_and_doubles_nothing_whatever_happens(tmp_path: Path) -> None:
    """Workers killed, frozen in the middle of a transaction, locked out, and a full disk."""
    plan = islice(schedule(SEED, SHORT, store="sqlite"), len(FAULTS["sqlite"]))
    verdict = played(tmp_path, plan, SHORT, store="sqlite")
    assert verdict.violations == {}
    assert verdict.reached["jobs stored"] > 500, "there was hardly any work that could have been disturbed"
    for path in ("handlers run again", "settlements refused", "runs resumed at a cursor"):
        assert verdict.reached[path], f"this round never got to where mistakes are made: {path}"


ON_MEMBERS = replace(SHORT, lease=MEMBERS_LEASE_SECONDS)
OF_MEMBERS = ("kill-primary", "lose-majority", "full", "blackhole", "swallow", "trap", "kill")


@campaign
def test_a_replica_set_loses_nothing_and_doubles_nothing_whatever_happens(tmp_path: Path) -> None:
    """The primary killed and on a full disk, the majority lost, the network cut, replies lost."""
    plan = islice(schedule(SEED, ON_MEMBERS, OF_MEMBERS, "mongodb"), len(OF_MEMBERS))
    verdict = played(tmp_path, plan, ON_MEMBERS, store="mongodb")
    # Elections have time limits of their own, which three members on a busy machine may miss; `./dev chaos` checks it.
    assert set(verdict.violations) <= {"everything_comes_back"}, verdict.violations
    assert verdict.reached["jobs stored"] > 100, "there was hardly any work that could have been disturbed"
    for path in ("exchanges repeated", "handlers run again"):
        assert verdict.reached[path], f"this round never got to where mistakes are made: {path}"


@campaign
def test_a_missing_safeguard_is_noticed_on_a_replica_set(tmp_path: Path) -> None:
    """The checker must see what this store accepts. The others: `./dev chaos --store mongodb --sabotage NAME`."""
    name = "settle_any_token"
    scale = replace(SHORT, calm=1.0)
    verdict = played(tmp_path, islice(exposing(name, scale, "mongodb"), 4), scale, name, "mongodb")
    assert set(verdict.violations) & set(ON_MONGODB[name].noticed_by), f"nobody misses it: {SABOTAGES[name].removes}"


@campaign
def test_a_missing_safeguard_is_noticed_with_a_file(tmp_path: Path) -> None:
    """The checker must see the workers of a file as it sees those of a server. The other safeguards:
    `./dev chaos --store sqlite --sabotage NAME`.
    """
    name = "settle_any_token"
    scale = replace(SHORT, calm=1.0)
    verdict = played(tmp_path, islice(exposing(name, scale, "sqlite"), 4), scale, name, "sqlite")
    assert set(verdict.violations) & set(ON_SQLITE[name].noticed_by), f"nobody misses it: {SABOTAGES[name].removes}"


@pytest.mark.parametrize("name", [pytest.param("settle_any_token", marks=campaign), "submit_anew"])
def test_a_missing_safeguard_is_noticed(name: str, tmp_path: Path) -> None:
    """A campaign that does not notice a removed safeguard proves nothing about it. The others: `./dev chaos --sabotage
    NAME`.
    """
    scale = replace(SHORT, calm=1.0)
    verdict = played(tmp_path, islice(exposing(name, scale), 4), scale, name)
    assert set(verdict.violations) & set(EXPOSURES[name].noticed_by), f"nobody misses it: {SABOTAGES[name].removes}"


def test_every_safeguard_that_can_be_removed_can_be_missed() -> None:
    """A sabotage that no check notices proves that the checks are blind."""
    assert set(EXPOSURES) == set(SABOTAGES)
    assert set(ON_SQLITE) == set(SABOTAGES) - {"submit_anew"}
    assert set(ON_MONGODB) == set(SABOTAGES) - {"submit_anew"}
