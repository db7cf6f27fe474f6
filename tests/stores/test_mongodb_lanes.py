"""The cost of an exchange does not grow with the lanes that exist, and no lane with work is hidden from it."""

from collections.abc import AsyncIterator, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from pymongo import MongoClient
from tests.stores.conftest import empty
from tests.stores.test_mongodb_plans import SESSION_FIELDS, Recorder

from leaseway.domain.exchange import Closing, Gate
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import Rate
from leaseway.domain.tenant import Tenant
from leaseway.stores.mongodb.health import wrong_flows
from leaseway.stores.mongodb.lanes import HAS_FREE, HAS_GATED, KINDS
from leaseway.stores.mongodb.schema import FLOWS, LANES
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, new_job
from leaseway.testing.mongodb import MongoServer

MANY = 2_000
TAKEN = 10
EXAMINED_MAX = 1_000
"""Keys and documents that one query may examine: those of the lanes that a claim or a list of gates has room for."""


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def store(mongodb: MongoServer, clock: FakeClock, recorder: Recorder) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongodb.url, now_us=clock.now_us)
    store.connections._options["event_listeners"] = [recorder]
    await store.open()
    await empty(store)
    yield store
    await store.close()


@pytest.fixture
def client(mongodb: MongoServer) -> Iterator[MongoClient[dict[str, Any]]]:
    client: MongoClient[dict[str, Any]]
    with MongoClient(mongodb.url) as client:
        yield client


async def fill(store: MongoStore, **lanes: Sequence[str]) -> None:
    """One job in each of so many lanes: by tenant, or by needs."""
    ((field, names),) = lanes.items()
    for start in range(0, len(names), 500):
        part = enumerate(names[start : start + 500], start)
        await store.jobs.submit([new_job(number, **{field: name}) for number, name in part])
    while await store.database.fold():
        pass


def examined(client: MongoClient[dict[str, Any]], command: dict[str, Any]) -> int:
    """The most keys and documents that one query of this command examines. Scans of whole collections are refused."""
    command = {name: value for name, value in command.items() if value is not None and name not in SESSION_FIELDS}
    if len(updates := command.get("updates", ())) > 1:
        return max(examined(client, {**command, "updates": [each]}) for each in updates)
    if "aggregate" not in command:
        plan = client.leaseway.command({"explain": command, "verbosity": "executionStats"})
        assert "COLLSCAN" not in str(plan["queryPlanner"]["winningPlan"]), (command, plan["queryPlanner"])
        stats = plan["executionStats"]
        return int(stats["totalKeysExamined"] + stats["totalDocsExamined"])
    shown = {"aggregate": command["aggregate"], "pipeline": command["pipeline"], "cursor": {}}
    plan = client.leaseway.command({"explain": shown, "verbosity": "executionStats"})
    lookups = [each for each in plan.get("stages", ()) if "$lookup" in each]
    large = [each for each in lookups if each["$lookup"]["from"] in (FLOWS, LANES)]
    assert all(each["collectionScans"] == 0 for each in large), large
    return max((int(each["totalKeysExamined"] + each["totalDocsExamined"]) for each in large), default=0)


def most(client: MongoClient[dict[str, Any]], recorder: Recorder) -> dict[str, int]:
    assert recorder.commands, "nothing was recorded"
    read = [each for each in recorder.commands if "delete" not in each]
    return {f"{n} {next(iter(each))}": examined(client, each) for n, each in enumerate(read)}


async def test_a_claim_examines_the_tenants_that_it_serves(
    store: MongoStore, recorder: Recorder, client: MongoClient[dict[str, Any]]
) -> None:
    """With ten thousand tenants a claim took fifty times as long as with one."""
    await fill(store, tenant=[f"t{n:05}" for n in range(MANY)])
    recorder.commands.clear()
    worker = ContractWorker(store)
    leases = await worker.claim(TAKEN)
    assert len(leases) == TAKEN
    await worker.exchange(*[done(lease) for lease in leases], wants=worker.wants(TAKEN))
    costs = most(client, recorder)
    assert all(count <= EXAMINED_MAX for count in costs.values()), costs


async def test_a_claim_behind_gates_examines_the_lanes_that_it_serves(
    store: MongoStore, recorder: Recorder, client: MongoClient[dict[str, Any]]
) -> None:
    """With a limit per account, every account is a lane."""
    await fill(store, needs=[f"mail:{n:05}" for n in range(MANY)])
    recorder.commands.clear()
    worker = ContractWorker(store)
    gated = (await worker.exchange(wants=worker.wants(TAKEN))).gated
    assert len(await worker.claim(TAKEN, admits={each.gate: 1 for each in gated[:TAKEN]})) == TAKEN
    assert await store.jobs.wait_us(("default",)) == 0
    costs = most(client, recorder)
    assert all(count <= EXAMINED_MAX for count in costs.values()), costs


async def test_paused_tenants_and_closed_lanes_are_not_walked(
    store: MongoStore, recorder: Recorder, client: MongoClient[dict[str, Any]]
) -> None:
    """Their virtual times stay low, so they would come first in every walk."""
    await fill(store, needs=[f"mail:{n:05}" for n in range(MANY)])
    worker, paused = ContractWorker(store), [f"p{n:03}" for n in range(160)]
    for start in range(0, MANY, 500):
        gates = [Gate(f"mail:{n:05}", "default") for n in range(start, start + 500)]
        closings = tuple(Closing(gate, 30 * SECOND_US, "used up") for gate in gates)
        assert (await worker.exchange(wants=replace(worker.wants(), closed=closings))).leases == ()
    await store.jobs.submit([new_job(10_000 + n, tenant=name) for n, name in enumerate(paused)])
    await store.jobs.submit([new_job(20_000, tenant="zz"), new_job(20_001, tenant="zz", needs="maps")])
    while await store.database.fold():
        pass
    assert store.pauses is not None
    for name in paused:
        await store.pauses.pause("default", name)
    recorder.commands.clear()
    reply = await worker.exchange(wants=worker.wants(TAKEN))
    assert [lease.tenant for lease in reply.leases] == ["zz"]
    assert [each.gate for each in reply.gated] == [Gate("maps", "zz")]
    await store.jobs.wait_us(("default",), [Gate("maps", "zz")])
    costs = most(client, recorder)
    assert all(count <= EXAMINED_MAX for count in costs.values()), costs


async def test_a_worker_of_very_many_queues_walks_each_by_its_index(
    store: MongoStore, recorder: Recorder, client: MongoClient[dict[str, Any]]
) -> None:
    """The server merges a bounded number of indexes; beyond that, it would sort all flows."""
    await fill(store, tenant=[f"t{n:05}" for n in range(MANY)])
    recorder.commands.clear()
    worker, queues = ContractWorker(store), ("default", *(f"q{n:03}" for n in range(400)))
    assert len(await worker.claim(TAKEN, queues)) == TAKEN
    costs = most(client, recorder)
    assert all(count <= EXAMINED_MAX + 2 * len(queues) for count in costs.values()), costs


# -- no lane with work is hidden --------------------------------------------------------------------------------------

NEEDS = ("", "maps", "mail")
TENANTS = ("a", "b")


class Chance:
    """Whatever changes lanes, in a random order; some of it folded."""

    def __init__(self, store: MongoStore, clock: FakeClock, seed: int) -> None:
        self._store, self._clock, self._random = store, clock, Random(seed)
        self._worker = ContractWorker(store)
        self._number = 0

    async def step(self) -> None:
        steps = [self.submit, self.claim, self.close, self.reopen, self.cap, self.pass_time, self.fold, self.prune]
        await self._random.choice(steps)()

    def gate(self) -> Gate:
        return Gate(self._random.choice(NEEDS), self._random.choice(TENANTS))

    async def submit(self) -> None:
        self._number += 1
        gate = self.gate()
        await self._store.jobs.submit([new_job(self._number, tenant=gate.tenant, needs=gate.needs)])

    async def claim(self) -> None:
        leases = await self._worker.claim(3, admits={self.gate(): 2, self.gate(): 2})
        await self._worker.settle(*[done(lease) for lease in leases])

    async def close(self) -> None:
        closing = Closing(self.gate(), self._random.choice([0, SECOND_US, 30 * SECOND_US]), "used up")
        await self._worker.exchange(wants=replace(self._worker.wants(0), closed=(closing,)))

    async def reopen(self) -> None:
        await self._store.operations.open_lanes(self._random.choice(NEEDS[1:]), 10)

    async def cap(self) -> None:
        tenant = Tenant(name=self._random.choice(TENANTS), starts=self._random.choice([(), (Rate(SECOND_US, 5),)]))
        await self._store.tenants.set(tenant)

    async def pass_time(self) -> None:
        self._clock.advance(2 * SECOND_US)

    async def fold(self) -> None:
        await self._store.database.fold()

    async def prune(self) -> None:
        await self._store.operations.prune(0, 10)


async def test_flows_tell_which_lanes_have_work(store: MongoStore, clock: FakeClock) -> None:
    """A flow that says that it has no work, although a lane of it has, would never be served again."""
    kinds: set[str] = set()
    for seed in range(4):
        await empty(store)
        chance = Chance(store, clock, seed)
        for number in range(60):
            await chance.step()
            if number % 5 == 4:
                while await store.database.fold():
                    pass
                assert await store.database.snapshot(wrong_flows) == []
                database = await store.connections.database()
                kinds |= {kind for kind in KINDS if await database[FLOWS].count_documents({kind: True})}
    assert kinds == set(KINDS), "some flows had work"


async def test_a_flow_whose_last_lane_is_closed_has_no_work_until_it_is_opened(store: MongoStore) -> None:
    """Otherwise a hundred thousand tenants whose limits are used up would be walked by each claim."""
    gate, worker = Gate("mail", "default"), ContractWorker(store)
    database = await store.connections.database()
    await fill(store, needs=["mail"])
    for wait_us in (SECOND_US, 0, SECOND_US):
        await worker.exchange(wants=replace(worker.wants(), closed=(Closing(gate, wait_us, "used up"),)))
        await store.database.fold()
        flow = await database[FLOWS].find_one({})
        assert flow is not None
        assert (flow[HAS_FREE], flow[HAS_GATED]) == (False, not wait_us)


async def test_a_pause_of_a_whole_queue_hides_its_flows(store: MongoStore) -> None:
    """A pause without a tenant covers tenants that come later, too."""
    await fill(store, tenant=["a", "b"])
    assert store.pauses is not None
    await store.pauses.pause("default")
    assert await ContractWorker(store).claim(TAKEN) == ()
    await store.pauses.resume("default")
    assert len(await ContractWorker(store).claim(TAKEN)) == 2
