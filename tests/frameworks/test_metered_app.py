"""The example application, with real processes: its bill is the provider's bill, also after a worker was killed."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.worker.observe import eventually

from leaseway import App
from leaseway.testing.provider import Provider, provider
from leaseway.testing.server import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "metered_app"
TENANTS = ("acme", "bolt", "coda")
PRICE_MICROS = 2_000
PATIENT_SECONDS = 240
CALLS_AT_ONCE = 3
"""The concurrency limit of the example."""


@contextmanager
def started(folder: Path, url: str, *command: str) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {**os.environ, "PROVIDER_URL": url, "PYTHONPATH": str(EXAMPLE)}
    with subprocess.Popen([sys.executable, "-m", *command], cwd=folder, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


async def submit_texts(web: httpx.AsyncClient, count: int) -> dict[str, str]:
    """The ids of the summaries, with the tenant of each."""
    submitted = {}
    for n in range(count):
        tenant = TENANTS[n % len(TENANTS)]
        headers = {"X-Api-Key": f"key-of-{tenant}"}
        reply = await web.post("/summaries", params={"text": f"text {n}"}, headers=headers)
        assert reply.status_code == 202, reply.text
        submitted[reply.json()["id"]] = tenant
    return submitted


async def show(web: httpx.AsyncClient, id_: str, tenant: str) -> dict[str, Any]:
    reply = await web.get(f"/summaries/{id_}", headers={"X-Api-Key": f"key-of-{tenant}"})
    shown: dict[str, Any] = reply.json()
    return shown


async def all_done(web: httpx.AsyncClient, submitted: dict[str, str]) -> bool:
    states = [(await show(web, id_, tenant))["state"] for id_, tenant in submitted.items()]
    assert "failed" not in states
    return set(states) == {"done"}


async def is_listening(web: httpx.AsyncClient) -> bool:
    try:
        return (await web.get("/openapi.json")).status_code == 200
    except httpx.TransportError:
        return False


def billed(it: Provider) -> int:
    return sum(arrival.is_accepted for arrival in it.arrivals)


async def nothing_held(app: App) -> bool:
    await app.world.ledger.expire(100)
    return all(window.balance.held_micros == 0 for window in await app.world.ledger.reads.balances())


def test_the_example_fits_on_a_page() -> None:
    """An application that needs more than this is not as simple as the documentation says."""
    assert len((EXAMPLE / "metered_app.py").read_text().splitlines()) <= 60


def test_the_page_shows_the_application_as_it_is() -> None:
    """Readers copy the text of the page, which is executed as a document."""
    assert (EXAMPLE / "metered_app.py").read_text() in (EXAMPLE / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_bill_of_the_provider_is_the_ledger_although_a_worker_was_killed(tmp_path: Path) -> None:
    """Each call costs money. A call that a limit repeats, or that the ledger forgets, is paid by the operator."""
    port = free_port()
    async with provider(limits=["10 per 2 s"]) as it, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as web:
        work = ("leaseway.cli", "work", "metered_app:app")
        with started(tmp_path, it.url, "uvicorn", "metered_app:web", "--port", str(port)):
            await eventually(lambda: is_listening(web))
            it.hang(CALLS_AT_ONCE)
            submitted = await submit_texts(web, 12)
            with started(tmp_path, it.url, *work) as victim:
                await it.has_seen(CALLS_AT_ONCE)  # no other call can be on its way
                victim.send_signal(signal.SIGKILL)
                victim.wait()
            with started(tmp_path, it.url, *work), started(tmp_path, it.url, *work):
                await eventually(lambda: all_done(web, submitted), PATIENT_SECONDS, every=0.2)
            await judge_results(web, submitted)
        async with App(f"sqlite:///{tmp_path}/metered_app.db") as app:
            await app.store()
            await eventually(
                lambda: nothing_held(app), 90, every=0.2
            )  # the calls of the victim are captured at their deadline
            spent = {window.name: window.balance.spent_micros for window in await app.world.ledger.reads.balances()}
            assert sum(spent.values()) == billed(it) * PRICE_MICROS
            assert set(spent) == {f"spend:{tenant}" for tenant in TENANTS}
            assert (await app.world.ledger.reads.audit()).wrong() == []
        judge_calls(it, submitted)


async def judge_results(web: httpx.AsyncClient, submitted: dict[str, str]) -> None:
    first, tenant = next(iter(submitted.items()))
    assert set((await show(web, first, tenant))["result"]) == {"language", "summary"}
    other = next(each for each in TENANTS if each != tenant)
    assert await show(web, first, other) == {"detail": "there is no such summary"}


def judge_calls(it: Provider, submitted: dict[str, str]) -> None:
    """Only the calls that the victim had in flight were sent twice, under the same key."""
    assert it.refused == 0
    sent = Counter(arrival.idempotency_key for arrival in it.arrivals)
    assert len(sent) == 2 * len(submitted)
    assert it.duplicates == CALLS_AT_ONCE
    assert {arrival.idempotency_key for arrival in it.arrivals[:CALLS_AT_ONCE]} == {
        key for key, count in sent.items() if count > 1
    }
