"""Celery by its own worker, on PostgreSQL (with the SQLAlchemy broker) or on Redis: no-op tasks with an argument of 200
bytes.

    python -m benchmarks.postgres.celery_peer fill URL COUNT
    python -m benchmarks.postgres.celery_peer drain URL '{"pool": "prefork", "concurrency": 2, …}'

Results are off; acknowledgements are Celery's default, before the task runs. Its best case: the time runs from the
first task that was started, not from the first that was fetched.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from typing import Any

import billiard
from celery import Celery
from celery.worker import state
from redis import Redis
from sqlalchemy import create_engine, text

from benchmarks.postgres.setups import CelerySetup
from benchmarks.processes import done, ready
from leaseway.bench.processes import TEXT

LOOK_SECONDS = 0.005


def app_at(url: str, **settings: Any) -> tuple[Celery, Any]:
    app = Celery("bench", broker=url if on_redis(url) else f"sqla+{sqlalchemy_url(url)}", set_as_current=False)
    app.conf.update(task_ignore_result=True, worker_redirect_stdouts=False, worker_hijack_root_logger=False, **settings)

    @app.task(name="noop")  # type: ignore[untyped-decorator]
    def noop(text: str) -> None:
        pass

    return app, noop


def on_redis(url: str) -> bool:
    return url.startswith("redis:")


def sqlalchemy_url(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:")


def fill(url: str, count: int) -> None:
    """Its broker cannot send many at once. That this is not durable is not measured."""
    app, noop = app_at(url if on_redis(url) else f"{url}?options=-csynchronous_commit%3Doff")
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            noop.apply_async(args=[TEXT], producer=producer)


def waiting(url: str) -> int:
    if on_redis(url):
        with Redis.from_url(url) as client:
            return int(client.llen("celery"))
    with create_engine(sqlalchemy_url(url)).connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM kombu_message WHERE visible")).scalar_one())


def drain(url: str, setup: CelerySetup) -> None:
    app, _ = app_at(url, worker_prefetch_multiplier=setup.prefetch_multiplier)
    count = waiting(url)
    ready()
    worker = app.Worker(
        pool=setup.pool,
        concurrency=setup.concurrency,
        quiet=True,
        loglevel="CRITICAL",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    threading.Thread(target=watch, args=[count], daemon=True).start()
    worker.start()


def watch(count: int) -> None:
    """Its main process knows which tasks were started and which are running, whatever the pool."""
    while not state.total_count:
        time.sleep(LOOK_SECONDS / 10)
    begun_ns = time.monotonic_ns()
    while state.total_count["noop"] < count or state.active_requests:
        time.sleep(LOOK_SECONDS)
    done(count, begun_ns, time.monotonic_ns())
    leave()


def leave() -> None:
    """At once: an orderly stop takes Celery five seconds, which is not measured."""
    for child in billiard.active_children():
        os.kill(child.pid, signal.SIGKILL)
    os._exit(0)


def main(name: str, url: str, argument: str) -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # it refuses to run as root otherwise
    if name == "fill":
        fill(url, int(argument))
    else:
        drain(url, CelerySetup(**json.loads(argument)))


if __name__ == "__main__":
    main(*sys.argv[1:])
