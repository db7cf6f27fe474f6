"""A store in a MongoDB database: a replica set or a sharded cluster, because transactions need one.

errors        what errors of PyMongo and of the server mean
connection    clients, transactions, the server's time
schema        collections, validators, indexes and their version
database      a transaction that moves jobs; what several ports share
documents     jobs as documents, and back
lanes         counters and virtual times, changed by inserted documents
submit, settle, claim   the steps of a job's life, each within an open transaction
store         all ports: jobs, operations, reads, definitions, keys, notify, health; limits and budgets are beside it
"""

import asyncio
import sys
from collections.abc import Awaitable
from typing import Any, TypeVar

import pymongo.lock
from pymongo import AsyncMongoClient

T = TypeVar("T")


async def wait_in_own_task(waited: Awaitable[T], seconds: float | None) -> T:
    """As `asyncio.wait_for` does since Python 3.12, wait without a task of its own.

    The driver waits so for a member or a connection, and holds a lock before and after. The older `wait_for` may return
    before the task that it has created owns the lock again, if its caller is cancelled just when the time is over. Then
    the lock is released by a call that does not own it, or is never released again: during an election, every later
    call of the process would wait forever.
    """
    async with asyncio.timeout(seconds):
        return await waited


if sys.version_info < (3, 12):
    pymongo.lock.wait_for = wait_in_own_task  # type: ignore[assignment, attr-defined]


async def reset_connections(client: AsyncMongoClient[Any]) -> None:
    """Calls that begin from now on get new connections. The others go on; their connections are closed afterwards."""
    for server in list(client._topology._servers.values()):
        await server.pool.reset_without_pause()
