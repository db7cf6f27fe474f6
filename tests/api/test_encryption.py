"""A service without keys passes encrypted jobs between submitters and workers that have them. It must work with them,
and it must not see what they contain."""

from pathlib import Path
from typing import Any

import pytest
from tests.api.keys import key_for
from tests.api.running_service import Served, run_service

from leaseway import AesGcm, App, BadValue, Limit, State
from leaseway.domain.encryption import describe_encrypted
from leaseway.domain.identity import Role
from leaseway.domain.kind import SubmitOptions

PLAIN = "the patient's name"
KEY = AesGcm.new_key()


def client_app(served: Served, key: str | None, codec: AesGcm | None) -> App:
    app = App(served.url, key=key, codec=codec)

    @app.job(attempts=2, backoff=0)
    async def treat(ctx: Any, name: str) -> str:
        await ctx.checkpoint(name)
        ctx.progress(1, 2, name)
        if ctx.attempt == 1:
            raise ValueError(f"{name} is not in")
        return f"{name} is well"

    return app


async def every_text(served: Served, key: str, id_: str) -> str:
    """What a tenant's dashboard can read of a job."""
    async with served.with_key(key) as client:
        paths = (f"/v1/jobs/{id_}", "/v1/jobs", f"/v1/jobs/{id_}/result", f"/v1/jobs/{id_}/why")
        return "".join([(await client.get(path)).text for path in paths])


@pytest.fixture
def app(store_url: str) -> App:
    """A service that knows no kinds and has no keys."""
    return App(store_url)


@pytest.mark.parametrize("tenant", [None, "acme"], ids=["tenant of the key", "named tenant"])
async def test_submitter_and_worker_encrypt_and_the_service_does_not_see_it(
    served_with_keys: Served, tenant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not know the tenant that the service assigns, so the values are not bound to it."""
    monkeypatch.setenv("LEASEWAY_INSECURE", "1")
    served, codec = served_with_keys, AesGcm({"2026-05": KEY})
    submitting, working = await key_for(served), await key_for(served, "acme", Role.WORKER)
    async with client_app(served, submitting.text, codec) as submitter:
        options: SubmitOptions = {"key": "once"} if tenant is None else {"key": "once", "tenant": tenant}
        job = await submitter.submit(submitter.bind("treat", {"name": PLAIN}, **options))
        again = await submitter.submit(submitter.bind("treat", {"name": PLAIN}, **options))
        assert again.id == job.id
        async with client_app(served, working.text, codec) as worker:
            await worker.run_worker(until_empty=True)
        seen = await every_text(served, submitting.text, job.id)
        assert "patient" not in seen
        assert "encrypted (key 2026-05)" in seen
        record = await submitter.wait(job, timeout=60)
        assert (record.state, record.tenant, record.result) == (State.DONE, "acme", f"{PLAIN} is well")
        assert record.payload == {"name": PLAIN}


async def test_a_service_with_the_key_encrypts_and_shows(store_url: str) -> None:
    """An operator may give the service a key: the store is encrypted, and the dashboard is not."""
    async with run_service(App(store_url, codec=AesGcm({"k": KEY}))) as served:

        @served.app.job(attempts=1)
        async def treat(name: str) -> str:
            raise ValueError(name)

        reply = await served.client.post(
            "/v1/jobs", json={"kind": "treat", "arguments": {"name": PLAIN}, "key": "once"}
        )
        id_ = reply.json()["id"]
        again = await served.client.post(
            "/v1/jobs", json={"kind": "treat", "arguments": {"name": PLAIN}, "key": "once"}
        )
        assert again.json()["id"] == id_
        await served.settle()
        stored = await served.service.world.store.reads.job(id_)
        assert stored is not None
        assert describe_encrypted(stored.payload) == "encrypted (key k)"
        shown = (await served.client.get(f"/v1/jobs/{id_}")).json()
        assert (shown["payload"], shown["errors"][0]["message"]) == ({"name": PLAIN}, PLAIN)
        assert PLAIN in shown["errors"][0]["traceback"]
        assert (await served.client.get("/v1/jobs")).json()["items"][0]["payload"] == {"name": PLAIN}


@pytest.mark.parametrize("has_key", [False, True])
async def test_limits_come_from_the_kind_also_if_the_job_is_encrypted(
    store_url: str, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    """A tenant must not get around a limit by encrypting the arguments from which its name is made."""
    monkeypatch.setenv("LEASEWAY_INSECURE", "1")
    codec = AesGcm({"k": KEY})
    async with run_service(App(store_url, codec=codec if has_key else None), auth=True) as served:
        for name, limit in (("plain", None), ("fixed", "maps"), ("each", "mail:{account}")):
            limits = [] if limit is None else [Limit(limit, "1/hour")]
            served.app.job(name=name, limits=limits)(treat_account)
        client = App(served.url, key=(await key_for(served)).text, codec=codec)
        for name in ("plain", "fixed", "each"):
            client.job(name=name)(treat_account)
        async with client:
            needs = {}
            for name in ("plain", "fixed", "each"):
                try:
                    job = await client.submit(client.bind(name, {"account": PLAIN}))
                    stored = await served.service.world.store.reads.job(job.id)
                    assert stored is not None
                    needs[name] = stored.needs
                except BadValue as error:
                    needs[name] = str(error)
            assert needs["plain"] == ""
            assert '"maps"' in needs["fixed"]
            assert (f"mail:{PLAIN}" if has_key else "give the service the key") in needs["each"]
            if has_key:
                client.world.encryption._codec = AesGcm({"k": AesGcm.new_key()})
                with pytest.raises(BadValue, match="payload: the value cannot be decrypted"):
                    await client.submit(client.bind("plain", {"account": PLAIN}))


async def treat_account(account: str) -> None: ...


async def test_the_mark_of_encryption_is_reserved(served: Served) -> None:
    """A worker would wait for the key of such a job for ever."""
    body = {"kind": "any", "arguments": {"$encrypted": "k", "data": ""}}
    reply = await served.client.post("/v1/jobs", json=body)
    assert reply.status_code == 422
    assert "arguments.$encrypted: is reserved" in reply.json()["detail"]


@pytest.fixture
async def served(app: App) -> Any:
    async with run_service(app) as served:
        yield served


async def test_an_app_without_the_key_gets_the_envelope(store_url: str, tmp_path: Path) -> None:
    """It can pass the value on, and sees which key it needs."""
    async with App(store_url, codec=AesGcm({"k": KEY})) as app:

        @app.job
        async def treat(name: str) -> str:
            return name

        job = await treat.submit(name=PLAIN)
        await app.run_worker(until_empty=True)
    async with App(store_url) as other:
        found = await other.find(job)
        assert found is not None
        assert found.result["$encrypted"] == "k"
