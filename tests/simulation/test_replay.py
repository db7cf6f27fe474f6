"""A failure that cannot be replayed cannot be debugged: the seed must determine the whole history."""

import os
import subprocess
import sys

import pytest
from tests.simulation.campaign.jobs_scenario import run_seed
from tests.simulation.campaign.metered_scenario import run_metered

SEEDS = (1, 2, 3)
METERED_SEED = 508
"""A worker ends calls under several limits at once."""


def test_the_same_seed_tells_the_same_story() -> None:
    """A violation that cannot be replayed cannot be debugged."""
    first = [run_seed(seed) for seed in SEEDS]
    again = [run_seed(seed) for seed in reversed(SEEDS)][::-1]
    assert first == again


def test_another_seed_tells_another_story() -> None:
    """If seeds did not differ, a campaign would run one history many times."""
    assert len({run_seed(seed).trace_hash for seed in SEEDS}) == len(SEEDS)


def test_writing_the_trace_down_does_not_change_it() -> None:
    """A replay with its trace must show the same violation as the run without."""
    lines: list[str] = []
    report = run_seed(1, write=lines.append)
    assert report == run_seed(1)
    assert len(lines) == report.trace_lines


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["0", "4711", "random"])
def test_a_new_process_tells_the_same_story(hash_seed: str) -> None:
    """Sets, addresses and hash order differ between processes; nothing may depend on them."""
    told = in_new_process(hash_seed)
    assert told == [*(run_seed(seed).trace_hash for seed in SEEDS), run_metered(METERED_SEED).trace_hash]


def in_new_process(hash_seed: str) -> list[str]:
    code = (
        "from tests.simulation.campaign.jobs_scenario import run_seed; "
        "from tests.simulation.campaign.metered_scenario import run_metered; "
        f"print(*[run_seed(seed).trace_hash for seed in {SEEDS}], run_metered({METERED_SEED}).trace_hash)"
    )
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return answer.stdout.split()
