"""A Relay connection of strawberry: python graphql_things.py PORT COUNT"""

import sys
from collections.abc import Iterable

import strawberry
import uvicorn
from strawberry import relay
from strawberry.asgi import GraphQL

PORT, COUNT = int(sys.argv[1]), int(sys.argv[2])


@strawberry.type
class Thing(relay.Node):
    id: relay.NodeID[int]
    number: int
    name: str


@strawberry.type
class Query:
    @relay.connection(relay.ListConnection[Thing])
    def things(self) -> Iterable[Thing]:
        return [Thing(id=number, number=number, name=f"thing {number}") for number in range(1, COUNT + 1)]


uvicorn.run(GraphQL(strawberry.Schema(Query)), host="127.0.0.1", port=PORT, log_level="warning")
