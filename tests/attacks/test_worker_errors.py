"""Errors that workers send in raw calls of the worker protocol, without the Python client that removes secrets.

They are shown to tenants and operators, so the service removes what it recognizes before it stores them.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.api.keys import key_for
from tests.api.running_service import Served

from leaseway.api.worker_protocol.validation import redact_errors
from leaseway.domain.encryption import write_envelope
from leaseway.domain.exchange import Exchange
from leaseway.domain.identity import Role
from leaseway.domain.ids import Token, WorkerId
from leaseway.domain.job import ErrorRecord, Failure, Settlement, State
from leaseway.testing.job_store_contract.fixtures import id_of, new_job
from leaseway.worker.run_handler import MESSAGE_MAX, TRACEBACK_MAX

SECRETS = "GET https://me:hunter2abc@maps.example/?api_key=hunter3abc failed: Authorization: Bearer hunter4abc"
REDACTED = "GET https://me:***@maps.example/?api_key=*** failed: Authorization: ***"


@pytest.fixture
async def worker(served_with_keys: Served) -> AsyncIterator[httpx2.AsyncClient]:
    key = await key_for(served_with_keys, "acme", Role.WORKER)
    async with served_with_keys.with_key(key.text) as client:
        yield client


async def settle(served: Served, worker: httpx2.AsyncClient, failure: dict[str, Any], state: str) -> ErrorRecord:
    """The error that the store keeps after a job was settled with this failure."""
    store = served.service.world.store
    await store.jobs.submit([new_job(1, tenant="acme")])
    wants = {"queues": ["default"], "count": 1, "token": "chosen"}
    assert (await worker.post("/v1/work/exchange", json={"worker": "w", "wants": wants})).json()["leases"]
    settled = {"id": id_of(1), "token": "chosen", "state": state, "failure": failure}
    reply = await worker.post("/v1/work/exchange", json={"worker": "w", "settlements": [settled]})
    assert (reply.status_code, reply.json()["lost"]) == (200, [])
    (error,) = await store.reads.errors(id_of(1))
    return error


@pytest.mark.parametrize("state", ["failed", "pending"])
async def test_secrets_in_errors_of_any_client_are_not_stored(
    served_with_keys: Served, worker: httpx2.AsyncClient, state: str
) -> None:
    """A worker in another language does not know which texts are secrets, and errors are shown to people."""
    failure = {"code": "401?token=hunter5abc", "message": SECRETS, "traceback": f"line 1\n{SECRETS}"}
    error = await settle(served_with_keys, worker, failure, state)
    assert (error.code, error.message) == ("401?token=***", REDACTED)
    assert error.traceback == f"line 1\n{REDACTED}"


async def test_a_code_has_one_line(served_with_keys: Served, worker: httpx2.AsyncClient) -> None:
    """Codes are shown in lists, where a line break would forge an entry. Clients in other languages send any text."""
    failure = {"code": "a\n  done\x1b[2J\u202e" + "\x07" * 100, "message": "two\nlines"}
    error = await settle(served_with_keys, worker, failure, "failed")
    assert error.code.startswith("a\\n  done\\x1b[2J\\u202e\\x07")
    assert (error.code.isprintable(), len(error.code), error.message) == (True, 200, "two\nlines")


async def test_the_reason_of_a_closed_gate_has_one_line(served_with_keys: Served, worker: httpx2.AsyncClient) -> None:
    """`jobs why` shows it to operators."""
    closed = [{"gate": {"needs": "", "tenant": "acme"}, "wait_us": 10**6, "why": "limit\n  FAKE"}]
    wants = {"queues": ["default"], "count": 1, "token": "chosen", "closed": closed}
    reply = await worker.post("/v1/work/exchange", json={"worker": "w", "wants": wants})
    assert (reply.status_code, reply.json()["errors"][0]["pointer"]) == (422, "/wants/closed/why")


async def test_long_errors_are_cut_as_in_python_workers(served_with_keys: Served, worker: httpx2.AsyncClient) -> None:
    """The beginning of a message and the end of a traceback are useful; the rest would fill the store."""
    failure = {"code": "x", "message": "a" * 100_000, "traceback": "b" * 100_000 + "end"}
    error = await settle(served_with_keys, worker, failure, "failed")
    assert (len(error.message), len(error.traceback)) == (MESSAGE_MAX, TRACEBACK_MAX)
    assert error.traceback.endswith("bend")


async def test_encrypted_errors_stay_as_they_are(served_with_keys: Served, worker: httpx2.AsyncClient) -> None:
    """A changed character would make them unreadable; the worker has removed the secrets before."""
    sealed = write_envelope("key", b"password=" * 3_000, "message")
    error = await settle(served_with_keys, worker, {"code": "x", "message": sealed, "traceback": sealed}, "failed")
    assert (error.message, error.traceback) == (sealed, sealed)


async def test_the_mark_of_encryption_does_not_protect_plain_text(
    served_with_keys: Served, worker: httpx2.AsyncClient
) -> None:
    """Otherwise an error that begins like an encrypted one would be stored with its secrets."""
    failure = {"code": "x", "message": '{"$encrypted":"' + SECRETS}
    error = await settle(served_with_keys, worker, failure, "failed")
    assert "hunter" not in error.message


async def test_a_client_cannot_guess_secrets_of_the_service(
    served_with_keys: Served, worker: httpx2.AsyncClient
) -> None:
    """If the service masked the values that it knows, a worker could send thousands of guesses and see which is
    masked."""
    served_with_keys.service.world.redactor.add(["hunter9abc"])
    error = await settle(served_with_keys, worker, {"code": "x", "message": "is it hunter9abc"}, "failed")
    assert error.message == "is it hunter9abc"


async def test_many_long_errors_do_not_stop_the_event_loop() -> None:
    """One call may carry 16 MiB of errors, and everybody else waits while they are searched on the loop."""
    failure = Failure("x", "://" * 2_000 + "@", "-eyJ" * 8_000)
    settlements = [Settlement(id=id_of(n), token=Token("t"), state=State.FAILED, failure=failure) for n in range(50)]
    redacting = asyncio.create_task(redact_errors(Exchange(WorkerId("w"), tuple(settlements))))
    turns = 0
    while not redacting.done():
        turns += 1
        await asyncio.sleep(0)
    assert len((await redacting).settlements) == 50
    assert turns > 10
