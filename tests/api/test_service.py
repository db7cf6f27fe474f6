"""Submissions through the service, and what all its routes have in common."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from fastapi import Request
from tests.api.keys import bearer, key_for
from tests.api.running_service import run_service

from leaseway import App
from leaseway.api.routing import Authenticated, FastRoutes, Routes, route_descriptions
from leaseway.api.service import Service
from leaseway.api.settings import ServiceSettings
from leaseway.api.submit_batcher import SubmitBatcher
from leaseway.domain.errors import KeyConflict, StoreFull
from leaseway.domain.identity import Scope
from leaseway.domain.ids import JobId
from leaseway.domain.job import NewJob, Submitted
from leaseway.worker import environment


class SlowStore:
    """A store that blocks until it is released, and can be full."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.free = asyncio.Event()
        self.is_full = False

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        self.batches.append([job.id for job in jobs])
        await self.free.wait()
        if self.is_full:
            raise StoreFull("no room")
        if any(job.key == "taken" for job in jobs):
            raise KeyConflict("taken")
        return [Submitted(job.id) for job in jobs]


def job(number: int, key: str | None = None) -> NewJob:
    return NewJob(id=JobId(f"{number:026}"), kind="x", payload="{}", key=key)


def submitter_for(store: SlowStore) -> SubmitBatcher:
    return SubmitBatcher(store, None)  # type: ignore[arg-type]


async def test_requests_that_arrive_during_a_write_share_the_next_one() -> None:
    """One transaction per request would limit the service to the rate of disk flushes."""
    store = SlowStore()
    submitter = submitter_for(store)
    waiting = [asyncio.ensure_future(submitter.submit(job(0)))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting += [asyncio.ensure_future(submitter.submit(job(number))) for number in range(1, 700)]
    await asyncio.sleep(0)
    store.free.set()
    results = await asyncio.gather(*waiting)
    assert [result.id for result in results] == [job(number).id for number in range(700)]
    assert [len(batch) for batch in store.batches] == [1, 500, 199]
    await submitter.close()


async def test_a_client_that_disconnects_does_not_affect_its_batch() -> None:
    """Its request shares a transaction with those of other clients."""
    store = SlowStore()
    submitter = submitter_for(store)
    gone, stays = (asyncio.ensure_future(submitter.submit(job(number))) for number in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    store.free.set()
    assert (await stays).id == job(1).id


async def test_one_refused_job_of_a_bulk_request_does_not_affect_the_others() -> None:
    """Written one by one, a thousand jobs with one invalid key would cost a thousand transactions."""
    store = SlowStore()
    store.free.set()
    jobs = [job(number, "taken" if number == 77 else None) for number in range(256)]
    results = await submitter_for(store).submit_many(jobs)
    assert [number for number, result in enumerate(results) if isinstance(result, KeyConflict)] == [77]
    assert len(store.batches) <= 2 * 8 + 1


async def test_every_client_learns_that_the_store_is_full() -> None:
    """A client that does not get the error assumes that its job is stored."""
    store = SlowStore()
    store.is_full = True
    store.free.set()
    submitter = submitter_for(store)
    results = await asyncio.gather(*(submitter.submit(job(number)) for number in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [StoreFull] * 3
    store.is_full = False
    assert (await submitter.submit(job(9))).id == job(9).id


async def test_a_client_that_disconnects_does_not_block_its_key() -> None:
    """Otherwise the repetition of an interrupted request would be refused until the service restarts."""
    store = SlowStore()
    submitter = submitter_for(store)
    gone, repeated = (asyncio.ensure_future(submitter.submit(job(number, "k"))) for number in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    store.free.set()
    assert (await repeated).id == job(1).id


async def test_a_store_that_is_full_is_a_503_and_nothing_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the idempotency key were kept, the repeated request would get an answer for a job that does not exist."""
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        store, submit = served.service.world.store, served.service.world.store.jobs.submit

        async def full(jobs: Sequence[NewJob]) -> list[Submitted]:
            raise StoreFull("/var/lib/secret.db is full")

        store.jobs.submit = full  # type: ignore[method-assign]
        headers = {"Idempotency-Key": '"k"'}
        answer = await served.client.post("/v1/jobs", json={"kind": "x"}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "retry-after" in answer.headers
        assert "secret" not in answer.text
        assert "secret" in caplog.text
        store.jobs.submit = submit  # type: ignore[method-assign]
        again = await served.client.post("/v1/jobs", json={"kind": "x"}, headers=headers)
        assert (again.status_code, "idempotent-replayed" in again.headers) == (202, False)


async def test_a_list_goes_on_at_another_process_that_shares_the_secret(tmp_path: Path) -> None:
    """Behind a load balancer, the next page is served by another process."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    async with (
        run_service(App(url), cursor_secret=b"shared") as one,
        run_service(App(url), cursor_secret=b"shared") as two,
        run_service(App(url)) as stranger,
    ):
        for _ in range(3):
            await one.client.post("/v1/jobs", json={"kind": "x"})
        first = (await one.client.get("/v1/jobs", params={"limit": 1})).json()
        query = {"limit": 2, "cursor": first["next"]}
        assert len((await two.client.get("/v1/jobs", params=query)).json()["items"]) == 2
        assert (await stranger.client.get("/v1/jobs", params=query)).status_code == 400


async def test_the_description_is_complete_enough_to_write_a_client(tmp_path: Path) -> None:
    """Generated clients need the schemas of the bodies."""
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        found = (await served.client.get("/v1/openapi.json")).json()
    assert found["openapi"].startswith("3.1")
    body = found["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["$ref"].rpartition("/")[2] in found["components"]["schemas"]


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
async def test_no_page_loads_anything_from_elsewhere(tmp_path: Path, path: str) -> None:
    """The default documentation pages load scripts from a foreign host."""
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        assert (await served.client.get(path)).status_code == 404


async def test_the_short_way_to_busy_routes_has_the_same_guard(tmp_path: Path) -> None:
    """A fast path that skips a check would bypass authentication."""
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}"), auth=True) as served:
        reader, writer = await key_for(served, scopes=(Scope.JOBS_READ,)), await key_for(served)
        statuses = [
            (await served.client.post("/v1/jobs", json={"kind": "x"}, headers=headers)).status_code
            for headers in ({}, bearer(reader), bearer(writer))
        ]
        assert list(FastRoutes(served.api, served.api.routes).routes) == [("POST", "/v1/jobs")]
    assert statuses == [401, 403, 202]


async def test_only_routes_of_the_application_are_served_and_described(tmp_path: Path) -> None:
    """A route that is declared elsewhere in the process, for example in a test, must not become part of a service."""
    stray = Routes("/v1/stray", "stray")

    async def endpoint(request: Request, caller: Authenticated) -> None: ...

    stray.post("", Scope.JOBS_READ, is_fast=True)(endpoint)
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        assert (await served.client.post("/v1/stray")).status_code == 404
        assert "POST /v1/stray" not in route_descriptions(served.api.routes)


async def test_a_service_ends_although_a_driver_swallows_a_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pymongo may on Python 3.11. A service that waited for such a task would have to be killed at every restart."""
    monkeypatch.setattr(environment, "CANCEL_AGAIN_SECONDS", 0.01)
    swallowed: set[str] = set()

    def stubborn(name: str) -> asyncio.Task[None]:
        async def run() -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if name in swallowed:
                        raise
                    swallowed.add(name)

        return asyncio.get_running_loop().create_task(run())

    async with App("memory://") as app, asyncio.timeout(60):
        service = Service(app, ServiceSettings(imports=str(tmp_path), auth=True))
        await service.open()
        owners = {
            "_bringing_forward": service,
            "_renewing": service.rate_limits[0],
            "_task": service.job_waits,
            "_task ": service.import_monitor,
        }
        replaced = [getattr(owner, name.strip()) for name, owner in owners.items()]
        for task in filter(None, replaced):
            task.cancel()
        for name, owner in owners.items():
            setattr(owner, name.strip(), stubborn(name))
        await asyncio.sleep(0)
        await service.close()
    assert swallowed == set(owners)
