"""The cost of an exchange does not grow with the jobs that are stored: the server's own plans and counts say so."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandListener
from tests.stores.conftest import empty

from leaseway.domain.ids import SECOND_US
from leaseway.domain.inspection import JobFilter
from leaseway.ports.store import require_inspection
from leaseway.stores.mongodb.schema import JOBS
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, new_job
from leaseway.testing.mongodb import MongoServer

WAITING, SCHEDULED, FINISHED = 2_000, 500, 500
TAKEN = 10
EXAMINED_MAX = 60
"""Documents of jobs that one command may examine: those that it takes, and a few more."""
SESSION_FIELDS = ("lsid", "txnNumber", "startTransaction", "autocommit", "readConcern", "$clusterTime", "$db")


class Recorder(CommandListener):
    """The commands that read jobs, as the driver has sent them."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []

    def started(self, event: Any) -> None:
        if event.command_name in ("find", "aggregate", "update", "delete"):
            command = {name: value for name, value in event.command.items() if name not in SESSION_FIELDS}
            self.commands.append(command | {"writeConcern": None})

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def store(mongodb: MongoServer, clock: FakeClock, recorder: Recorder) -> AsyncIterator[MongoStore]:
    """With jobs of each status."""
    store = MongoStore(mongodb.url, now_us=clock.now_us)
    store.connections._options["event_listeners"] = [recorder]
    await store.open()
    await empty(store)
    numbers = iter(range(100_000))
    await store.jobs.submit([new_job(next(numbers)) for _ in range(FINISHED)])
    worker = ContractWorker(store)
    await worker.settle(*[done(lease) for lease in await worker.claim(FINISHED)])
    await store.jobs.submit([new_job(next(numbers)) for _ in range(WAITING)])
    await store.jobs.submit([new_job(next(numbers), delay_us=3_600 * SECOND_US) for _ in range(SCHEDULED)])
    recorder.commands.clear()
    yield store
    await store.close()


@pytest.fixture
def client(mongodb: MongoServer) -> Iterator[MongoClient[dict[str, Any]]]:
    client: MongoClient[dict[str, Any]]
    with MongoClient(mongodb.url) as client:
        yield client


def examined(client: MongoClient[dict[str, Any]], command: dict[str, Any]) -> int:
    """How many documents of jobs the server examines for this command. Scans of all jobs are refused."""
    command = {name: value for name, value in command.items() if value is not None}
    if len(updates := command.get("updates", ())) > 1:  # the server explains one at a time
        return sum(examined(client, {**command, "updates": [each]}) for each in updates)
    if "aggregate" in command:
        command = {"aggregate": command["aggregate"], "pipeline": command["pipeline"], "cursor": {}}
    plan = client.leaseway.command({"explain": command, "verbosity": "executionStats"})
    if "aggregate" in command and "stages" in plan:
        stages = [stage for stage in plan["stages"] if "$lookup" in stage and stage["$lookup"]["from"] == JOBS]
        assert all(stage["collectionScans"] == 0 for stage in stages), stages
        first = plan["stages"][0].get("$cursor") if command["aggregate"] == JOBS else None
        if first is not None:
            assert "COLLSCAN" not in str(first["queryPlanner"]["winningPlan"]), first["queryPlanner"]["winningPlan"]
        found = 0 if first is None else int(first["executionStats"]["totalDocsExamined"])
        return found + sum(int(stage["totalDocsExamined"]) for stage in stages)
    if JOBS not in (command.get("find"), command.get("update"), command.get("delete"), command.get("aggregate")):
        return 0
    assert "COLLSCAN" not in str(plan["queryPlanner"]["winningPlan"]), plan["queryPlanner"]["winningPlan"]
    return int(plan["executionStats"]["totalDocsExamined"])


def cost(client: MongoClient[dict[str, Any]], recorder: Recorder) -> dict[str, int]:
    assert recorder.commands, "nothing was recorded"
    return {f"{n} {next(iter(each))}": examined(client, each) for n, each in enumerate(recorder.commands)}


async def test_an_exchange_examines_the_jobs_that_it_takes(
    store: MongoStore, recorder: Recorder, client: MongoClient[dict[str, Any]]
) -> None:
    """Agenda needs a second for a claim when half a million jobs wait."""
    worker = ContractWorker(store)
    leases = await worker.claim(TAKEN)
    await worker.exchange(*[done(lease) for lease in leases], wants=worker.wants(TAKEN))
    costs = cost(client, recorder)
    assert all(count <= EXAMINED_MAX for count in costs.values()), costs


async def test_a_repeated_exchange_examines_only_jobs_that_are_leased(
    store: MongoStore, recorder: Recorder, client: MongoClient[dict[str, Any]]
) -> None:
    """After a lost reply the worker asks for its leases. Reading all jobs would take longer than they last."""
    worker = ContractWorker(store)
    wants = worker.wants(TAKEN)
    leases = (await worker.exchange(wants=wants)).leases
    recorder.commands.clear()
    assert (await worker.exchange(wants=wants, repeat=True)).leases == leases
    costs = cost(client, recorder)
    assert all(count <= EXAMINED_MAX for count in costs.values()), costs


async def test_the_list_of_lease_owners_reads_only_jobs_that_are_leased(
    store: MongoStore, recorder: Recorder, client: MongoClient[dict[str, Any]]
) -> None:
    """The dashboard shows it all the time."""
    await ContractWorker(store).claim(TAKEN)
    recorder.commands.clear()
    (owner,) = await require_inspection(store).owners()
    assert owner.leased == TAKEN
    costs = cost(client, recorder)
    assert all(count <= EXAMINED_MAX for count in costs.values()), costs


async def test_an_idle_worker_examines_almost_nothing(
    store: MongoStore, recorder: Recorder, client: MongoClient[dict[str, Any]]
) -> None:
    """Idle workers ask again and again."""
    assert await store.jobs.wait_us(("default",)) == 0
    assert await store.jobs.wait_us(("other",)) is not None
    costs = cost(client, recorder)
    assert all(count <= 4 for count in costs.values()), costs


async def test_due_jobs_and_old_jobs_are_found_by_an_index(
    store: MongoStore, clock: FakeClock, recorder: Recorder, client: MongoClient[dict[str, Any]]
) -> None:
    """Every worker looks for them, in every exchange."""
    await store.operations.prune(3_600 * SECOND_US, TAKEN)
    clock.advance(30 * SECOND_US)
    await store.operations.prune(SECOND_US, TAKEN)
    costs = cost(client, recorder)
    assert all(count <= EXAMINED_MAX for count in costs.values()), costs


async def test_lists_of_a_small_tenant_do_not_read_the_jobs_of_a_large_one(
    store: MongoStore, recorder: Recorder, client: MongoClient[dict[str, Any]]
) -> None:
    """The dashboard of a tenant with three jobs must not cost as much as that of one with a million."""
    await store.jobs.submit([new_job(90_000 + n, tenant="small") for n in range(3)])
    recorder.commands.clear()
    assert len(await store.reads.jobs(JobFilter(tenant="small"))) == 3
    assert len((await require_inspection(store).search(JobFilter(tenant="small"))).jobs) == 3
    _, recent = await require_inspection(store).recent(TAKEN, 0, TAKEN)
    assert len(recent) == 2 * TAKEN
    costs = cost(client, recorder)
    assert all(count <= EXAMINED_MAX for count in costs.values()), costs


async def test_a_claim_reaches_one_shard(
    store: MongoStore, recorder: Recorder, client: MongoClient[dict[str, Any]]
) -> None:
    """The designed shard key is queue and tenant. A claim that leaves one of them open would ask every shard."""
    await ContractWorker(store).claim(TAKEN)
    claims = [each for each in recorder.commands if each.get("find") == JOBS and "turn" in each.get("sort", {})]
    assert claims
    for command in claims:
        command = {name: value for name, value in command.items() if value is not None}
        plan = client.leaseway.command({"explain": command, "verbosity": "queryPlanner"})
        stage = plan["queryPlanner"]["winningPlan"]
        while stage["stage"] != "IXSCAN":
            stage = stage["inputStage"]
        bounds = {name: stage["indexBounds"][name] for name in ("queue", "tenant")}
        assert bounds == {"queue": ['["default", "default"]'], "tenant": ['["default", "default"]']}
