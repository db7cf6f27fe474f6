"""A service with something of everything, for tests that only look: it is made once, and no test changes it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.api.serving import Served, serving
from tests.dashboard.shop import MARKUP, shop_of, submitted

from leaseway import App, Limit
from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import Token, WorkerId

LONG = "a-name-that-is-longer-than-the-screen-of-a-phone-is-wide"


class Filled(NamedTuple):
    served: Served
    failed: str
    """The id of a job that failed."""

    def addresses(self) -> dict[str, str]:
        """Of every page, by what its heading says."""
        job, run = f"/jobs/{self.failed}", "/imports/ocm/first"
        named = {"broken": job, "ocm": run, "Overview": "/", "Dead letters": "/dead"}
        others = ["Jobs", "Imports", "Lanes", "Limits", "Budgets", "Workers"]
        return {**named, **{name: f"/{name.lower()}" for name in others}}


PAGES = ["Overview", "Jobs", "broken", "Dead letters", "Imports", "ocm", "Lanes", "Limits", "Budgets", "Workers"]


@asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[Filled]:
    async with serving(app_in(folder)) as served:
        failed = await with_ended(served)
        await with_waiting(served)
        await with_agreed(served)
        yield Filled(served, failed)


def app_in(folder: Path) -> App:
    app = shop_of(folder)

    @app.job(limits=[Limit("rare", "1/hour")], queue="slow")
    async def rare(n: int) -> int:
        return n

    return app


async def with_ended(served: Served) -> str:
    for text in ("late", MARKUP, "one", "two"):
        failed = await submitted(served, "broken", text=text)
    await submitted(served, "add", a=1, queue=MARKUP)
    cancelled = await submitted(served, "add", a=2)
    await served.client.post(f"/v1/jobs/{cancelled}/cancel")
    for shard in ("id=0-100", "id=100-200", "bad"):
        arguments = {"run": "first", "shard": f"ocm/{shard}/0f0f"}
        await served.app.submit(served.app.bind("import:ocm", arguments, queue="imports:ocm"))
    await served.settle()
    return failed


async def with_waiting(served: Served) -> None:
    """For a worker, for a limit that nobody has defined, for its time; and one that is at work."""
    await submitted(served, "rare", n=1)
    await submitted(served, "add", a=1, queue=LONG)
    await submitted(served, "add", a=1, queue="busy")
    body = {"kind": "add", "arguments": {"a": 1}, "run_at": "2199-01-01T00:00:00Z"}
    assert (await served.client.post("/v1/jobs", json=body)).status_code == 202
    wants = Wants(("busy",), 1, Token("token"))
    await served.service.world.store.jobs.exchange(Exchange(WorkerId(f"{LONG}-7"), (), wants))


async def with_agreed(served: Served) -> None:
    for name in ("maps", LONG):
        limit = {"rates": ["100/minute", "5000/day"], "concurrency": 8}
        assert (await served.client.put(f"/v1/limits/{name}", json=limit)).is_success
        assert (await served.client.put(f"/v1/budgets/{name}", json={"unit": "usd", "limit": 25})).is_success
