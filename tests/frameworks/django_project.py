"""The tasks of the tests' Django project."""

import threading
from typing import Any

from leaseway.django import framework

ran: list[Any] = []
tries: list[int] = []


@framework.task  # type: ignore[untyped-decorator]
def add(a: int, b: int = 0) -> int:
    ran.append((a, b))
    return a + b


@framework.task(queue_name="mail", priority=7)  # type: ignore[untyped-decorator]
async def greet(name: str) -> dict[str, list[str]]:
    ran.append(name)
    return {"hello": [name]}


class Broken(Exception):
    pass


@framework.task  # type: ignore[untyped-decorator]
def fail(kind: str) -> None:
    raise Broken("a message\nwith lines") if kind == "own" else ValueError("no")


@framework.task(takes_context=True)  # type: ignore[untyped-decorator]
def look(context: Any) -> dict[str, Any]:
    result = context.task_result
    if context.attempt < 2 and tries:
        tries.pop()
        raise ConnectionError("try again")
    return {"id": result.id, "attempt": context.attempt, "status": result.status, "thread": threading.get_ident()}


@framework.task  # type: ignore[untyped-decorator]
def answer(kind: str) -> Any:
    return {"set": {1}, "bytes": b"x", "tuple": (1, 2)}[kind]


def plain() -> None:
    ran.append("plain")
