"""An app whose one job imports the shards of a spec."""

from leaseway.app import App
from leaseway.imports.assembly import Parts
from leaseway.imports.run.start import LEASE_SECONDS, ShardJob, shard_job


def import_app(parts: Parts, url: str, lease_seconds: float = LEASE_SECONDS) -> tuple[App, ShardJob]:
    app = App(url)
    return app, shard_job(app, parts, lease_seconds)
