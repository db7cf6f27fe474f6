"""Deterministic simulation: the real worker and the real SQLite store, in virtual time, under faults.

    loop        virtual time; one loop per simulated process
    swarm       what a seed decides: which faults, how often, how many workers
    process     crash, pause, leave; clocks and ids of a process
    link        latency, stalls, refusals, lost requests and replies on the way to the store
    scenario    a faulty phase, a calm phase in which everything must end, and the verdict
    oracles     what must always hold; `sometimes`: what must happen in every campaign
    imports     whole imports: `api` is the source, `sink` the way to the rows, `shelf` their judge
    sabotage    safeguards switched off one by one, each of which the oracles must miss

`python -m leaseway.simulation --seeds 1000` runs a campaign, `--seed 7` replays one seed with its trace. Users run
their own jobs with `simulate(app, [job.bind(…)], seed=7)`.
"""

from leaseway.simulation.builtin import run_seed
from leaseway.simulation.loop import Deadlock, SimLoop
from leaseway.simulation.scenario import Report
from leaseway.simulation.user import Simulated, simulate

__all__ = ["Deadlock", "Report", "SimLoop", "Simulated", "run_seed", "simulate"]
