"""Deterministic simulation: the real worker and the real SQLite store, in virtual time, under faults.

    simulate        your own jobs: `simulate(app, [job.bind(…)], seed=7)`
    scenario        one run: a faulty phase, a calm phase in which every job must end, and the report
    loop            event loops in virtual time, one per simulated process
    swarm           what a seed decides: which faults, how often, how many workers
    process         crashes, pauses and exits; the clock and the ids of a process
    faulty_link     latency, stalls, refusals, lost requests and lost replies between a process and the store;
                    `faulty_limits` has the same for the limiter and the ledger
    oracles         invariants, checked at every commit; `limit_oracles` for limits and budgets
    promises        what the oracles compare with: every acknowledged call, recorded outside the store
    coverage        the situations that a campaign must reach at least once

The same seed gives the same history. leaseway's own campaigns are in the repository, in `tests/simulation/campaign`.
"""

from leaseway.simulation.scenario import SimulationReport
from leaseway.simulation.simulate import Simulated, simulate
from leaseway.virtual_time.loop import Deadlock, SimLoop

__all__ = ["Deadlock", "SimLoop", "Simulated", "SimulationReport", "simulate"]
