"""A service passes blobs on: to callers that may read the job, and without holding them in memory."""

import shutil
from pathlib import Path

import pytest
from tests.api.keys import key_for
from tests.api.running_service import run_service
from tests.blobs.jobs import LONG, make_app

from leaseway.testing.job_store_contract.fixtures import ContractWorker, done


async def test_a_tenant_downloads_its_own_blobs_only(tmp_path: Path) -> None:
    """A result may be the most confidential part of a job."""
    async with run_service(make_app(tmp_path), auth=True) as served:
        bound = served.app.bind("double", {"text": LONG}, tenant="acme")
        job = await served.app.submit(bound)
        path = f"/v1/jobs/{job.id}/blob"
        async with served.with_key((await key_for(served)).text) as own:
            reply = await own.get(path, params={"field": "payload"})
            assert (reply.status_code, reply.json()) == (200, {"text": LONG})
            assert (await own.get(path)).status_code == 409  # it has no result yet
            assert (await own.get(path, params={"field": "progress"})).status_code == 422
            shown = (await own.get(f"/v1/jobs/{job.id}")).json()
            assert shown["payload"]["bytes"] == len(reply.content)
        async with served.with_key((await key_for(served, "other")).text) as other:
            assert (await other.get(path, params={"field": "payload"})).status_code == 404
        assert (await served.client.get(path)).status_code == 401


@pytest.mark.parametrize("reference", [None, '{"$blob":"result-../../x","bytes":1,"sha256":""}', '{"$blob":"x'])
async def test_a_blob_that_cannot_be_read_is_said_without_the_services_folders(
    tmp_path: Path, reference: str | None
) -> None:
    """A tenant's worker can store any reference as a result. Each one made the service answer 500 and write a
    traceback into its log, and so did a blob that was lost."""
    async with run_service(make_app(tmp_path), auth=True) as served:
        store = await served.app.store()
        job = await served.app.submit(served.app.bind("double", {"text": LONG}, tenant="acme"))
        field = "payload"
        if reference is None:
            shutil.rmtree(tmp_path / "blobs")
        else:
            field, worker = "result", ContractWorker(store)
            await worker.settle(done(await worker.claim_one(), result=reference))
        async with served.with_key((await key_for(served)).text) as own:
            reply = await own.get(f"/v1/jobs/{job.id}/blob", params={"field": field})
        assert (reply.status_code, reply.json()["code"]) == (409, "blob_missing")
        assert str(tmp_path) not in reply.text


async def test_a_tenant_cannot_submit_a_reference(tmp_path: Path) -> None:
    """Only a worker or a client with access to the blob store writes references."""
    async with run_service(make_app(tmp_path), auth=False) as served:
        body = {"kind": "anything", "arguments": {"$blob": "payload-0123456789abcdef"}}
        served.app.kinds.clear()  # a service without the app accepts every kind
        reply = await served.client.post("/v1/jobs", json=body)
        assert reply.status_code == 422
        assert "reserved" in reply.text
