"""Each safeguard is removed once, and the simulation must notice: otherwise it proves nothing about it."""

from pathlib import Path

import pytest
from tests.simulation.campaign.run import SABOTAGES, SCENARIOS
from tests.simulation.campaign.sabotage import SEEDS_MAX, Sabotage

from leaseway.stores.sqlite.database import statements
from leaseway.worker.slots import Slots

FAST = (
    *("settle_any_token", "attempt_uncounted", "key_forgotten", "unsaid_is_free", "seats_left_early"),
    *("import_any_cursor", "import_empty_believed", "import_unfiltered"),
)

README = Path(__file__).parents[2] / "README.md"


def is_caught(name: str) -> bool:
    """Starts at the seed that is known to notice it, and continues from there if the product has changed meanwhile."""
    first, run = SABOTAGES[name].first, SCENARIOS[SABOTAGES[name].scenario]
    with SABOTAGES[name].at_work() as sql:
        for seed in range(first, first + SEEDS_MAX):
            if not run(seed, sql=sql).is_ok:
                print(f"{name}: noticed with seed {seed}, looked for from {first} on")
                return True
    return False


@pytest.mark.parametrize("name", FAST)
def test_a_missing_safeguard_is_noticed_quickly(name: str) -> None:
    """Part of ./dev check."""
    assert is_caught(name), f"nobody misses it: {SABOTAGES[name].removes}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SABOTAGES if name not in FAST])
def test_a_missing_safeguard_is_noticed(name: str) -> None:
    """A safeguard that can be removed without a violation is not tested."""
    assert is_caught(name), f"nobody misses it: {SABOTAGES[name].removes}"


@pytest.mark.parametrize(
    "nothing",
    [
        Sabotage(removes="no text", sql=(("settle", "no such text", ""),)),
        Sabotage(removes="no function", code=((Slots, "no_such_function", print),)),
    ],
)
def test_a_sabotage_that_finds_nothing_to_remove_says_so(nothing: Sabotage) -> None:
    """When the product changes, a sabotage must not silently become ineffective."""
    with pytest.raises(LookupError, match="removes nothing"), nothing.at_work():
        pass


def test_every_sabotage_fits_the_product() -> None:
    """A sabotage whose text or name the product no longer has removes nothing, and its test would prove nothing."""
    for name, sabotage in SABOTAGES.items():
        with sabotage.at_work() as sql:
            assert sabotage.code or sql != statements(), f"{name} removes nothing"
            assert all(getattr(owner, of) is instead for owner, of, instead in sabotage.code)


def test_after_a_sabotage_the_safeguard_is_back() -> None:
    """A safeguard that stays removed would make every later test of the process meaningless."""
    for sabotage in SABOTAGES.values():
        before = [getattr(owner, name) for owner, name, _ in sabotage.code]
        with sabotage.at_work():
            pass
        assert [getattr(owner, name) for owner, name, _ in sabotage.code] == before


def test_there_are_as_many_safeguards_as_the_readme_says() -> None:
    """The README states a number; it must not become wrong when a sabotage is removed."""
    assert "more than sixty safeguards" in " ".join(README.read_text("utf-8").lower().split())
    assert len(SABOTAGES) > 60
