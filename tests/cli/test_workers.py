"""leaseway workers"""

import asyncio
import socket

from tests.cli.place import Place
from tests.sqlite_files import open_sqlite

from leaseway.domain.workers import Heartbeat, HeartbeatReply
from leaseway.ports.store import require_workers
from leaseway.testing.workers_contract import heartbeat
from leaseway.wiring import store_at


def beat(place: Place, new: Heartbeat) -> HeartbeatReply:
    async def send() -> HeartbeatReply:
        store = store_at(f"sqlite:///{place.folder}/work.db")
        await store.open()
        try:
            return await require_workers(store).beat(new)
        finally:
            await store.close()

    return asyncio.run(send())


def test_workers_are_listed_and_drained(place: Place) -> None:
    """At night the operator has a terminal, and must see which workers there are before one is stopped."""
    place.ok("migrate")
    assert "there are no workers" in place.ok("workers").err
    beat(place, heartbeat("vm:42:a", used=3))
    told = place.json("workers")
    assert [(each["name"], each["state"], each["used"]) for each in told["workers"]] == [("vm:42:a", "running", 3)]
    assert told["total"] == {"running": 1, "idle": 0, "draining": 0, "lost": 0}
    assert "vm:42:a  running   3/20" in place.ok("workers", "list").out
    assert "stops when its running jobs have ended" in place.ok("workers", "drain", "vm:42:a").out
    assert beat(place, heartbeat("vm:42:a")).drain
    assert place.json("workers")["workers"][0]["state"] == "draining"


def test_draining_an_unknown_worker_names_the_known_ones(place: Place) -> None:
    """A mistyped name must not look like success."""
    place.ok("migrate")
    beat(place, heartbeat("vm:42:a"))
    refused = place.run("workers", "drain", "vm:42:b")
    assert (refused.code, "there are: vm:42:a" in refused.err) == (2, True)


def test_a_worker_that_fell_silent_fails_the_probe(place: Place) -> None:
    """A pod with a hanging worker runs for ever, unless the probe fails. A worker that was killed stays in the list for
    an hour, and must not fail the one that replaced it."""
    place.ok("migrate")
    beat(place, heartbeat("pod-1:1:a", host="pod-1"))
    assert "workers of pod-1: alive: pod-1:1:a" in place.ok("workers", "check", "--host", "pod-1").out
    with open_sqlite(place.folder / "work.db") as file:
        file.execute("UPDATE workers SET seen_at = seen_at - 16000000")
        file.commit()
    silent = place.run("workers", "check", "--host", "pod-1")
    assert (silent.code, "workers of pod-1: lost: silent for 16 s" in silent.out) == (1, True)
    beat(place, heartbeat("pod-1:1:b", host="pod-1"))
    assert "alive: pod-1:1:b" in place.ok("workers", "check", "--host", "pod-1").out


def test_a_probe_that_knows_nothing_succeeds(place: Place) -> None:
    """If the database is down, a probe that fails would restart every pod of the cluster, and help none of them."""
    place.ok("migrate")
    beat(place, heartbeat("pod-2:1:a", host="pod-2"))
    assert place.json("workers", "check", "--host", "pod-1")["state"] == "unknown"
    down = place.ok("workers", "check", "--store", "postgresql://nobody@127.0.0.1:1/none")
    assert "unknown: the store does not respond" in down.out


def test_the_probe_asks_for_the_machine_that_it_runs_on(place: Place) -> None:
    """In a pod, the name of the machine is that of the pod; a manifest cannot know it."""
    place.ok("migrate")
    beat(place, heartbeat("here:1:a", host=socket.gethostname()))
    assert "alive: here:1:a" in place.ok("workers", "check").out


def test_the_idlest_pod_costs_the_least(place: Place) -> None:
    """Kubernetes would otherwise end the pod with the most jobs as readily as one that is idle. The lines are read by a
    shell, so they hold nothing but names and numbers. A pod that is gone cannot be annotated."""
    place.ok("migrate")
    for pod, used in (("pod-1", 7), ("pod-2", 0), ("pod-3", 3), ("gone", 1)):
        beat(place, heartbeat(f"{pod}:1:a", host=pod, used=used))
    beat(place, heartbeat("pod-3:2:b", host="pod-3", used=2))
    beat(place, heartbeat("other:1:a", host="other", queues=("slow",)))
    with open_sqlite(place.folder / "work.db") as file:
        file.execute("UPDATE workers SET seen_at = seen_at - 16000000 WHERE name LIKE 'gone%'")
        file.commit()
    assert place.ok("workers", "costs", "--queue", "mail").out == "pod-2 0\npod-3 5\npod-1 7\n"
    assert place.json("workers", "costs")["costs"][0] == {"host": "other", "cost": 0}


def test_a_tenant_reports_no_worker_of_an_operators_machine(place: Place) -> None:
    """A worker of one tenant chooses the name of its machine. It could restart pods of the operator, keep hanging ones
    alive, and have Kubernetes end the busy ones first."""
    place.ok("migrate")
    beat(place, heartbeat("acme/x:1:a", host="pod-1", tenant="acme", used=99))
    beat(place, heartbeat("acme/x:1:b", host="pod-2", tenant="acme", used=99))
    assert place.json("workers", "costs")["costs"] == [{"host": "pod-1", "cost": 99}, {"host": "pod-2", "cost": 99}]
    beat(place, heartbeat("pod-1:1:a", host="pod-1", used=1))
    beat(place, heartbeat("pod-3:1:a", host="pod-3", used=7))
    assert place.ok("workers", "costs").out == "pod-1 1\npod-3 7\n"
    with open_sqlite(place.folder / "work.db") as file:
        file.execute("UPDATE workers SET seen_at = seen_at - 16000000 WHERE name LIKE 'pod-1%' OR name LIKE '%:b'")
        file.commit()
    assert place.run("workers", "check", "--host", "pod-1").code == 1, "the tenant's worker is alive, the pod's is not"
    assert place.json("workers", "check", "--host", "pod-2")["state"] == "unknown"
