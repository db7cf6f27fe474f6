"""An app whose one job imports the shards of a spec."""

from leaseway.app import App
from leaseway.imports.run.assembly import ImportParts
from leaseway.imports.run.shard_jobs import LEASE_SECONDS, ImportJobs, register_jobs


def import_app(parts: ImportParts, url: str, lease_seconds: float = LEASE_SECONDS) -> tuple[App, ImportJobs]:
    app = App(url)
    return app, register_jobs(app, parts, lease_seconds)
