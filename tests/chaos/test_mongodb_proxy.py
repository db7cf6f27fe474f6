"""The proxy in front of a member of a replica set: a client must neither bypass it nor notice it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from chaos.proxy import Proxy
from chaos.wire import MongoTraffic, complete_messages
from pymongo import AsyncMongoClient
from pymongo.errors import AutoReconnect

from leaseway.testing.mongodb import MongoServer

pytestmark = pytest.mark.slow

Client = AsyncMongoClient[dict[str, Any]]


@pytest.fixture
async def proxy(mongodb: MongoServer) -> AsyncIterator[Proxy]:
    addresses: dict[bytes, bytes] = {}
    async with Proxy(mongodb.port, lambda: MongoTraffic(addresses)) as proxy:
        addresses[f"127.0.0.1:{mongodb.port}".encode()] = f"127.0.0.1:{proxy.port}".encode()
        yield proxy


@pytest.fixture
async def client(proxy: Proxy, mongodb: MongoServer) -> AsyncIterator[Client]:
    url = mongodb.url.replace(f":{mongodb.port}", f":{proxy.port}")
    client: Client = AsyncMongoClient(url, retryWrites=False)
    async with client:
        await client.test.marks.delete_many({})
        yield client


async def test_a_client_learns_only_the_address_of_the_proxy(client: Client, proxy: Proxy) -> None:
    """Members tell their own addresses. A client that followed them would meet none of the campaign's faults."""
    await client.test.marks.insert_one({"_id": 1})
    assert client.nodes == frozenset({("127.0.0.1", proxy.port)})


async def test_a_large_reply_is_forwarded_unchanged(client: Client) -> None:
    """Replies are read message by message. A lost byte would look like a fault of the store."""
    texts = [str(number) * 1_000 for number in range(1_000)]
    await client.test.marks.insert_many({"_id": number, "text": text} for number, text in enumerate(texts))
    found = await client.test.marks.find().sort("_id").to_list()
    assert [each["text"] for each in found] == texts


async def test_a_trap_executes_the_command_and_loses_its_reply(client: Client, proxy: Proxy) -> None:
    """A client cannot tell this fault from a command that never arrived."""
    trap = proxy.trap("insert", 0.01)
    assert await client.test.marks.count_documents({}) == 0, "another command fell into the trap"
    with pytest.raises(AutoReconnect):
        await client.test.marks.insert_one({"_id": 1})
    assert trap.is_sprung
    assert await client.test.marks.count_documents({}) == 1


def test_a_message_that_arrives_in_pieces_is_complete_once() -> None:
    """A command that is split between two chunks must still spring its trap, and an address must still be replaced."""
    messages = [(12).to_bytes(4, "little") + b"12345678", (6).to_bytes(4, "little") + b"12"]
    buffer = bytearray()
    found = [message for byte in b"".join(messages) for message in complete_messages(buffer, bytes([byte]))]
    assert found == messages
    assert not buffer
