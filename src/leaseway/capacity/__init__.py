"""Capacity planning: how long a load takes with how many workers, how many requests it sends, and what it costs.

job mix | import plan ─► [real workers in virtual time ─► modelled provider] ─► a report per number of workers

    provider_model    how the provider answers: latency, errors, throttling, costs
    job_mix           modelled handlers for the jobs of an app
    recorded_load     the load of the last hours, from the history
    import_model      a modelled source for the plan of an import
    simulate          one run per number of workers
    report            what the runs took, and the knee where more workers stop helping

Workers, admission, limits, budgets, retries, the page loop and the sink are those of production. Only the provider, the
handlers and the clock are models.
"""

from leaseway.capacity.job_mix import JobLoad
from leaseway.capacity.provider_model import ProviderModel
from leaseway.capacity.report import CapacityReport, SimulatedRun, Spent

__all__ = ["CapacityReport", "JobLoad", "ProviderModel", "SimulatedRun", "Spent"]
