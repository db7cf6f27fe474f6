"""A service with some data of every kind, for tests that only read: it is started once, and no test changes it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.api.running_service import Served, run_service
from tests.dashboard.jobs_app import MARKUP, build_jobs_app, submit_job

from leaseway import App, Limit
from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import Token, WorkerId

LONG = "a-name-that-is-longer-than-the-screen-of-a-phone-is-wide"


class SampleService(NamedTuple):
    served: Served
    failed: str
    """The id of a failed job."""

    def addresses(self) -> dict[str, str]:
        """The paths of all pages, by their headings."""
        job, run = f"/jobs/{self.failed}", "/imports/ocm/first"
        named = {"broken": job, "ocm": run, "Overview": "/", "Dead letters": "/dead"}
        others = ["Jobs", "Imports", "Lanes", "Limits", "Budgets", "Workers"]
        return {**named, **{name: f"/{name.lower()}" for name in others}}


PAGES = ["Overview", "Jobs", "broken", "Dead letters", "Imports", "ocm", "Lanes", "Limits", "Budgets", "Workers"]


@asynccontextmanager
async def sample_service(store_url: str) -> AsyncIterator[SampleService]:
    async with run_service(sample_app(store_url)) as served:
        failed = await add_finished_jobs(served)
        await add_waiting_jobs(served)
        await add_definitions(served)
        yield SampleService(served, failed)


def sample_app(store_url: str) -> App:
    app = build_jobs_app(store_url)

    @app.job(limits=[Limit("rare", "1/hour")], queue="slow")
    async def rare(n: int) -> int:
        return n

    return app


async def add_finished_jobs(served: Served) -> str:
    for text in ("late", MARKUP, "one", "two"):
        failed = await submit_job(served, "broken", text=text)
    await submit_job(served, "add", a=1, queue=MARKUP)
    cancelled = await submit_job(served, "add", a=2)
    await served.client.post(f"/v1/jobs/{cancelled}/cancel")
    for shard in ("id=0-100", "id=100-200", "bad"):
        arguments = {"run": "first", "shard": f"ocm/{shard}/0f0f"}
        await served.app.submit(served.app.bind("import:ocm", arguments, queue="imports:ocm"))
    await served.settle()
    return failed


async def add_waiting_jobs(served: Served) -> None:
    """Jobs that wait for a worker, for an undefined limit, and for their time; and a running job."""
    await submit_job(served, "rare", n=1)
    await submit_job(served, "add", a=1, queue=LONG)
    await submit_job(served, "add", a=1, queue="busy")
    body = {"kind": "add", "arguments": {"a": 1}, "run_at": "2199-01-01T00:00:00Z"}
    assert (await served.client.post("/v1/jobs", json=body)).status_code == 202
    wants = Wants(("busy",), 1, Token("token"))
    await served.service.world.store.jobs.exchange(Exchange(WorkerId(f"{LONG}-7"), (), wants))


async def add_definitions(served: Served) -> None:
    for name in ("maps", LONG):
        limit = {"rates": ["100/minute", "5000/day"], "concurrency": 8}
        assert (await served.client.put(f"/v1/limits/{name}", json=limit)).is_success
        assert (await served.client.put(f"/v1/budgets/{name}", json={"unit": "usd", "limit": 25})).is_success
