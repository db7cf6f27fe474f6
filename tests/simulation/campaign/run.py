"""Many seeds on several processes: their violations, and the situations that they never reached."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.simulation.campaign import import_sabotage
from tests.simulation.campaign.imports_scenario import run_imports
from tests.simulation.campaign.jobs_scenario import run_seed
from tests.simulation.campaign.metered_scenario import run_metered
from tests.simulation.campaign.sabotage import SABOTAGES as SABOTAGES_OF_JOBS
from tests.simulation.campaign.scaled_scenario import run_scaled

from leaseway.simulation.coverage import CATALOGUES
from leaseway.simulation.scenario import SimulationReport

SCENARIOS = {"jobs": run_seed, "metered": run_metered, "imports": run_imports, "scaled": run_scaled}
SABOTAGES = {**SABOTAGES_OF_JOBS, **import_sabotage.SABOTAGES}
BATCH = 5
SEEDS_TO_REACH_ALL = 200
"""A smaller campaign is not expected to reach every situation."""


@dataclass
class Findings:
    scenario: str = "jobs"
    seeds: int = 0
    seconds: float = 0.0
    virtual_seconds: float = 0.0
    reached: Counter[str] = field(default_factory=Counter)
    """The number of seeds that reached each situation."""
    violations: list[SimulationReport] = field(default_factory=list)

    def add(self, report: SimulationReport) -> None:
        self.seeds += 1
        self.virtual_seconds += report.seconds
        self.reached.update(report.reached.keys())
        if not report.is_ok:
            self.violations.append(report)

    @property
    def never(self) -> list[str]:
        """Situations that the campaign was large enough to reach, and did not."""
        if self.seeds < SEEDS_TO_REACH_ALL:
            return []
        return [what for what in CATALOGUES[self.scenario] if not self.reached[what]]

    @property
    def is_ok(self) -> bool:
        return not self.violations and not self.never


def run_one(
    seed: int, scenario: str = "jobs", sabotage: str | None = None, write: Callable[[str], object] | None = None
) -> SimulationReport:
    """Run one seed, with a safeguard removed if a sabotage is named."""
    with nullcontext(None) if sabotage is None else SABOTAGES[sabotage].at_work() as sql:
        return SCENARIOS[scenario](seed, sql=sql, write=write)


def run_batch(seeds: Sequence[int], scenario: str, sabotage: str | None) -> list[SimulationReport]:
    return [run_one(seed, scenario, sabotage) for seed in seeds]


def reports(seeds: range, scenario: str, sabotage: str | None, processes: int) -> Iterator[SimulationReport]:
    """The reports of all seeds, in order."""
    batches = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    if processes == 1:
        for batch in batches:
            yield from run_batch(batch, scenario, sabotage)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for found in pool.map(run_batch, batches, [scenario] * len(batches), [sabotage] * len(batches)):
            yield from found


def run_campaign(
    seeds: range,
    *,
    scenario: str = "jobs",
    sabotage: str | None = None,
    processes: int = 1,
    tell: Callable[[Findings], object] = lambda findings: None,
) -> Findings:
    """Run every seed; `tell` is called with the findings after each."""
    findings = Findings(scenario)
    began = time.perf_counter()
    for report in reports(seeds, scenario, sabotage, processes):
        findings.add(report)
        findings.seconds = time.perf_counter() - began
        tell(findings)
    return findings
