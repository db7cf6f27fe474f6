"""What a worker of one tenant reports of itself and of its work: operators read it together with that of all others."""

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace
from tests.api.every_store import store_url as store_url
from tests.api.keys import key_for, operator_of
from tests.api.running_service import Served

from leaseway.api import tenant_usage
from leaseway.domain.history.rows import (
    BACKLOG,
    COUNTERS,
    KEYS_MAX,
    LENGTH_US,
    OTHERS,
    READY,
    RUN,
    SAMPLES,
    HistoryCell,
    HistoryLevel,
    HistoryRow,
    merge_rows,
    start_of,
)
from leaseway.domain.identity import Role
from leaseway.domain.workers import KINDS_MAX, NAMES_CHARS_MAX
from leaseway.ports.store import require_history, require_workers
from leaseway.stores.http.protocol import PREFIX
from leaseway.testing.history_contract import history_row
from leaseway.worker.maintenance import PERIODS_READ, maintain_history

RECORD, BEAT = f"{PREFIX}/history/record", f"{PREFIX}/workers/beat"
BEATS = {"worker": "acme-1", "host": "vm", "version": "1"}


@pytest.fixture
async def worker(served_with_keys: Served) -> AsyncIterator[httpx2.AsyncClient]:
    key = await key_for(served_with_keys, "acme", Role.WORKER)
    async with served_with_keys.with_key(key.text) as client:
        yield client


def row(number: int = 1, **fields: Any) -> dict[str, Any]:
    cell = {"counts": {"done": 1}, "times": {RUN: {3: 1}}}
    return {"id": f"w/{number}", "tenant": "acme", "queue": "mail", "kind": "send", "cell": cell} | fields


async def stored_rows(served: Served) -> list[HistoryRow]:
    """As if all were recorded in one minute."""
    rows = await require_history(served.service.world.store).rows(HistoryLevel.MINUTE, 0, 2**62)
    return [replace(each, at=0) for each in rows]


async def test_a_row_has_no_names_that_a_worker_invents(served_with_keys: Served, worker: httpx2.AsyncClient) -> None:
    """Merged rows have all names of their parts and are kept for 400 days. With new names in each flush, one row would
    grow without bound, and every reader of the history would read it.
    """
    known = dict.fromkeys(COUNTERS, 1)
    for number in range(3):
        invented = {f"{number}-{name}": 1 for name in range(5)}
        cell = {"counts": known | invented, "times": {RUN: {3: 1}, **{name: {1: 1} for name in invented}}}
        assert (await worker.post(RECORD, json={"rows": [row(number, cell=cell)]})).is_success
    (merged,) = merge_rows(await stored_rows(served_with_keys), HistoryLevel.MINUTE)
    assert merged.cell == HistoryCell(dict.fromkeys(COUNTERS, 3), {RUN: {3: 3}})


@pytest.mark.parametrize("name", ["\x1b[2J", "x" * 300, ""])
async def test_names_of_a_row_are_names(served_with_keys: Served, worker: httpx2.AsyncClient, name: str) -> None:
    """Names of counters were the only texts of a row without a bound: megabytes each."""
    for cell in ({"counts": {name: 1}}, {"times": {name: {1: 1}}}):
        reply = await worker.post(RECORD, json={"rows": [row(cell=cell)]})
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert await stored_rows(served_with_keys) == []


async def test_a_tenant_does_not_change_the_backlog_of_all(
    served_with_keys: Served, worker: httpx2.AsyncClient
) -> None:
    """The backlog is an average over samples. A billion samples of one tenant would show operators an empty queue."""
    sample = {"counts": {SAMPLES: 10**9, READY: 0}}
    assert (await worker.post(RECORD, json={"rows": [row(1, kind="", cell=sample), row(2)]})).is_success
    history = require_history(served_with_keys.service.world.store)
    true = HistoryRow(id=f"{BACKLOG}/1", tenant="globex", queue="q", cell=HistoryCell({SAMPLES: 1, READY: 70}))
    await history.record([true])
    operator = await operator_of(served_with_keys)
    async with served_with_keys.with_key(operator.text) as client:
        shown = (await client.get("/v1/history", params={"range": "15m"})).json()
    assert [point["ready"] for point in shown["backlog"]] == [70]
    assert {each.kind for each in await stored_rows(served_with_keys) if each.tenant == "acme"} == {"send"}


@pytest.mark.parametrize("tenant", ["m", "!backlog", "!~merged", "!~backlog"])
async def test_a_tenant_cannot_take_the_place_of_merged_rows(served_with_keys: Served, tenant: str) -> None:
    """The rows of workers of tenant m had ids like m/…, and so had the merged rows of all. One that was there already
    made the merged row of another tenant vanish, and a row !backlog/… stopped the merging for all.
    """
    world = served_with_keys.service.world
    history, now = require_history(world.store), await world.store.reads.now()
    minute = start_of(now, HistoryLevel.MINUTE)
    victim = replace(history_row(1), at=minute - 5 * LENGTH_US[HistoryLevel.MINUTE], tenant="globex")
    (target,) = merge_rows([victim], HistoryLevel.MINUTE)
    key = await key_for(served_with_keys, tenant, Role.WORKER)
    forged = [target.id, target.id.partition("/")[2], f"{minute}/x", f"{minute + LENGTH_US[HistoryLevel.MINUTE]}/x"]
    async with served_with_keys.with_key(key.text) as worker:
        rows = [row(tenant=tenant, id=each) for each in forged]
        assert (await worker.post(RECORD, json={"rows": rows})).is_success
    await history.record([victim])
    await maintain_history(world)
    stored = await history.rows(HistoryLevel.MINUTE, 0, 2**62)
    (kept,) = [each for each in stored if each.tenant == "globex"]
    assert (kept.id, kept.cell) == (target.id, victim.cell)


async def test_a_tenant_records_a_bounded_number_of_rows(
    served_with_keys: Served, worker: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history has no quota, and a tenant may send 500 requests per second, with 1,000 rows each. Of many queues and
    kinds, the merged history keeps a bounded number.
    """
    monkeypatch.setattr(tenant_usage, "HISTORY_ROWS_MAX", 2 * KEYS_MAX)
    rows = [row(number, queue=f"q{number}") for number in range(2 * KEYS_MAX)]
    for _ in range(20):  # a minute may begin between two requests
        reply = await worker.post(RECORD, json={"rows": rows})
        if not reply.is_success:
            break
    assert (reply.status_code, reply.json()["code"]) == (429, "too_many_rows")
    other = await key_for(served_with_keys, "globex", Role.WORKER)
    async with served_with_keys.with_key(other.text) as globex:
        assert (await globex.post(RECORD, json={"rows": [row(tenant="globex")]})).is_success
    stored = await stored_rows(served_with_keys)
    assert len(stored) == 2 * KEYS_MAX + 1
    merged = merge_rows(stored, HistoryLevel.MINUTE)
    assert len([each for each in merged if each.tenant == "acme" and each.queue != OTHERS]) == KEYS_MAX


async def test_the_history_of_a_tenant_is_read_in_steps_one_request_at_a_time(
    served_with_keys: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month of a hundred kinds is 72,000 rows with histograms. Eight requests of a key that may only read took 3 GB
    of memory and stopped all other tenants for 18 seconds.
    """
    store, kinds, hours = served_with_keys.service.world.store, 3, 40
    history = require_history(store)
    begin = start_of(await store.reads.now(), HistoryLevel.HOUR) - (hours + 5) * LENGTH_US[HistoryLevel.HOUR]
    for hour, kind in product(range(hours), range(kinds)):
        at = begin + hour * LENGTH_US[HistoryLevel.HOUR]
        await history.record([history_row(hour * kinds + kind, kind=f"k{kind}", level=HistoryLevel.HOUR, at=at)])
    under_way, most, largest, rows = 0, 0, 0, type(history).rows

    async def counted(self: Any, *given: Any, **named: Any) -> list[HistoryRow]:
        nonlocal under_way, most, largest
        under_way += 1
        most = max(most, under_way)
        try:
            found = await rows(self, *given, **named)
        finally:
            under_way -= 1
        largest = max(largest, len(found))
        return found

    monkeypatch.setattr(type(history), "rows", counted)
    async with served_with_keys.with_key((await key_for(served_with_keys, "acme")).text) as client:
        answers = await asyncio.gather(*(client.get("/v1/history", params={"range": "30d"}) for _ in range(4)))
        shown = [sum(kind["started"] for kind in answer.json()["kinds"]) for answer in answers]
        assert (shown, most, largest) == ([3 * kinds * hours] * 4, 1, kinds * PERIODS_READ[HistoryLevel.HOUR])
        body = {"level": 1, "since": 0, "until": begin * 2}
        lists = await asyncio.gather(*(client.post(f"{PREFIX}/history/list", json=body) for _ in range(4)))
    assert ({len(each.json()["value"]) for each in lists}, most) == ({kinds * hours}, 1)


async def test_the_names_of_a_tenants_worker_take_little_room(
    served_with_keys: Served, worker: httpx2.AsyncClient
) -> None:
    """Five hundred workers with a thousand kinds of 200 characters each would be 100 MB, which every list of workers
    and every live snapshot would read.
    """
    kinds = [f"{number:04}{'k' * 190}" for number in range(KINDS_MAX)]
    assert (await worker.post(BEAT, json={**BEATS, "kinds": kinds, "queues": kinds})).is_success
    (found,) = await require_workers(served_with_keys.service.world.store).all()
    assert found.beat.kinds == found.beat.queues == tuple(kinds[: NAMES_CHARS_MAX // 194])


async def test_the_estimates_of_a_tenants_worker_take_little_room(
    served_with_keys: Served, worker: httpx2.AsyncClient
) -> None:
    """They are listed with the names: a megabyte in each of five hundred heartbeats would be read by every list."""
    estimates = [{"kind": f"{n:03}{'k' * 190}", "limit": "tpm", "share": 1, "calls": 20} for n in range(100)]
    assert (await worker.post(BEAT, json={**BEATS, "estimates": estimates})).is_success
    (found,) = await require_workers(served_with_keys.service.world.store).all()
    assert [each.kind for each in found.beat.estimates] == [
        each["kind"] for each in estimates[: NAMES_CHARS_MAX // 196]
    ]
    for wrong in ({"kind": "\x1b[2J"}, {"limit": "x" * 300}, {"share": 2**62}, {"calls": -1}):
        reply = await worker.post(BEAT, json={**BEATS, "estimates": [{**estimates[0], **wrong}]})
        assert (reply.status_code, "estimates" in reply.text) == (422, True), wrong


@pytest.mark.parametrize("field", ["host", "version"])
async def test_a_worker_reports_no_text_that_a_terminal_obeys(
    served_with_keys: Served, worker: httpx2.AsyncClient, field: str
) -> None:
    """`leaseway workers` shows these texts to operators."""
    reply = await worker.post(BEAT, json={**BEATS, field: "\x1b]0;owned\x07"})
    assert (reply.status_code, field in reply.text) == (422, True)
    assert (await worker.post(BEAT, json={**BEATS, field: ""})).is_success
