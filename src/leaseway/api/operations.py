"""All the routes of those who run it."""

from leaseway.api import (
    budgets,
    import_changes,
    imports,
    lanes,
    limits,
    limits_changes,
    metrics,
    schedules,
    tenants,
    workers,
)
from leaseway.api.routes import Routes

ROUTES: tuple[Routes, ...] = (
    metrics.routes,
    lanes.routes,
    limits.routes,
    limits_changes.routes,
    budgets.routes,
    schedules.routes,
    tenants.routes,
    workers.routes,
    imports.routes,
    import_changes.routes,
)
