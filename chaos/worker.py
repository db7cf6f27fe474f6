"""A worker of the campaign: `python -m chaos.worker ORDERS`. It is leaseway's own worker with a recording store."""

import os
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct

import leaseway.wiring
from chaos import sabotage
from chaos.history import Heard, Journal, Loaded
from chaos.jobs import Jobs
from chaos.recording import recorded
from leaseway import TransientError
from leaseway.ports.store import Store
from leaseway.ports.telemetry import Tracing
from leaseway.wiring import store_at


class Orders(Struct, frozen=True, kw_only=True):
    name: str
    url: str
    folder: str
    lease_seconds: float
    seed: str = ""
    concurrency: int = 8
    backlog: int = 200


class HistoryEvents:
    """Events of the worker go into the history; once it has started, opening the store must never fail."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.has_started = False

    def emit(self, name: str, /, **facts: object) -> None:
        self.has_started |= name == "worker_started"
        # Failed attempts are planned: the handler's own record says how it ended.
        if name != "attempt_failed":
            self._journal.write(Heard(name=name, facts={key: str(fact) for key, fact in facts.items()}))


def main(orders: Orders) -> None:
    sabotage.apply(os.environ.get(sabotage.SABOTAGE))  # before the app makes its store
    journal = Journal(Path(orders.folder), orders.name)
    events = HistoryEvents(journal)

    def recording_store_at(url: str, key: str | None = None, tracing: Tracing | None = None) -> Store:
        return recorded(store_at(url, key, tracing), journal)

    leaseway.wiring.store_at = recording_store_at
    jobs = Jobs(orders.url, orders.lease_seconds, journal, orders.name, events)
    store_at(orders.url)  # loads the driver
    journal.write(Loaded())
    while True:  # until it has run; if the store is away at the start, the worker is started again
        try:
            jobs.app.work(concurrency=orders.concurrency, grace=2 * orders.lease_seconds)
        except TransientError as error:
            if events.has_started:
                raise
            journal.write(Heard(name="not_opened", facts={"error": str(error)}))
            time.sleep(0.2)
        else:
            return


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Orders))
