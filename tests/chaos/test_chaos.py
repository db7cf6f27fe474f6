"""Every fault once, against real processes and a real server, with a fixed seed; and sabotages that must lead to
violations.
"""

import asyncio
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest
from chaos.campaign import Campaign, Round
from chaos.exposure import EXPOSURES, exposing
from chaos.plan import FAULTS, Planned, schedule
from chaos.sabotage import SABOTAGES
from chaos.stage import SHORT, Scale
from chaos.verdict import Verdict, page
from msgspec.structs import replace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SEED = "7"


def played(folder: Path, plan: Iterable[Planned], scale: Scale, sabotage: str = "") -> Verdict:
    round_ = Round(seed=SEED, plan=plan, scale=scale, folder=folder, workers=3, sabotage=sabotage)
    verdict = asyncio.run(Campaign(round_, print).run())
    print(*page(verdict), sep="\n")
    return verdict


def test_nothing_is_lost_and_nothing_doubled_whatever_happens(tmp_path: Path) -> None:
    """Workers killed and frozen, the server killed, the network cut, replies lost: all within half a minute."""
    verdict = played(tmp_path, islice(schedule(SEED, SHORT), len(FAULTS)), SHORT)
    assert verdict.violations == {}
    assert verdict.reached["jobs stored"] > 500, "there was hardly any work that could have been disturbed"
    for path in ("exchanges repeated", "handlers run again", "settlements refused", "runs resumed at a cursor"):
        assert verdict.reached[path], f"this round never got to where mistakes are made: {path}"


@pytest.mark.parametrize("name", ["settle_any_token", "submit_anew"])
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
