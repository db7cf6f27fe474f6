"""Every store keeps every promise: the contract that ships with the package, on each store that ships with it."""

from leaseway.testing.job_store_contract import *  # noqa: F403
from leaseway.testing.read_model_contract import *  # noqa: F403
from leaseway.testing.schedule_contract import *  # noqa: F403
