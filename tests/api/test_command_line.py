"""The command line with a service as its store: each role reads what its key allows."""

import asyncio
import json

import pytest
from tests.api.keys import key_for, operator_of
from tests.api.running_service import Served

from leaseway.cli.main import main
from leaseway.worker.api_keys import MadeKey


async def run(served: Served, key: MadeKey, *words: str) -> int:
    """In a thread, because each command has an event loop of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEASEWAY_KEY", key.text)
        return await asyncio.to_thread(main, ["--store", served.url, *words])


@pytest.mark.parametrize("who", ["tenant", "operator"])
async def test_a_key_that_may_read_a_job_explains_why_it_waits(
    served_with_keys: Served, who: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the answer is made of, such as lanes and budgets of all tenants, is not for every key."""
    served = served_with_keys
    tenant = await key_for(served, "acme")
    key = tenant if who == "tenant" else await operator_of(served)
    async with served.with_key(tenant.text) as client:
        id_ = (await client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})).json()["id"]
    assert await run(served, key, "jobs", "why", id_) == 0
    shown = capsys.readouterr().out
    assert id_ in shown
    assert "It is ready" in shown
    assert await run(served, key, "jobs", "why", id_, "--json") == 0
    assert json.loads(capsys.readouterr().out)["code"] == "ready"


async def test_a_job_of_another_tenant_is_not_explained(
    served_with_keys: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it exists must not show either."""
    served = served_with_keys
    async with served.with_key((await key_for(served, "acme")).text) as client:
        id_ = (await client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})).json()["id"]
    assert await run(served, await key_for(served, "other"), "jobs", "why", id_) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "no job" in told.err
