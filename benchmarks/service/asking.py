"""All requests that the dashboard sends to the service, with filters that match many jobs, few and none."""

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from benchmarks.service.million import Filled

LISTS = ("lanes", "lanes/pauses", "workers", "limits", "budgets", "schedules", "tenants", "keys", "imports")
STATES = ("pending", "leased", "done", "failed", "cancelled")
FILTERS: tuple[dict[str, str], ...] = (
    {},
    *({"state": state} for state in STATES),
    {"kind": "kind-3"}, {"kind": "rare"}, {"kind": "unknown"},
    {"queue": "queue-2"}, {"queue": "quiet"}, {"queue": "unknown"},
    {"tenant": "tenant-4"}, {"tenant": "tiny"}, {"tenant": "unknown"},
    {"error_code": "Error-1"}, {"error_code": "Odd"}, {"error_code": "unknown"},
    {"state": "failed", "error_code": "Odd"}, {"state": "failed", "kind": "rare"}, {"state": "done", "kind": "rare"},
    {"state": "pending", "kind": "rare"}, {"state": "pending", "tenant": "tiny"}, {"state": "done", "tenant": "tiny"},
    {"state": "leased", "queue": "quiet"}, {"state": "failed", "tenant": "tiny", "queue": "queue-1"},
    {"state": "cancelled", "error_code": "Odd"}, {"kind": "kind-3", "queue": "queue-2", "tenant": "tenant-7"},
    {"kind": "rare", "tenant": "tenant-13", "queue": "queue-0"},
)  # fmt: skip
"""Filters that match many jobs, few and none, alone and combined."""
CHANGES: tuple[tuple[str, dict[str, str]], ...] = (
    ("retry", {}), ("retry", {"error_code": "Odd"}), ("retry", {"tenant": "tiny"}), ("retry", {"kind": "rare"}),
    ("cancel", {}), ("cancel", {"kind": "rare"}), ("cancel", {"queue": "quiet"}), ("cancel", {"tenant": "unknown"}),
    ("discard", {}), ("discard", {"kind": "rare"}), ("discard", {"tenant": "tiny"}),
)  # fmt: skip
"""How many jobs would be changed, before the change is confirmed."""


class Question(NamedTuple):
    name: str
    path: str
    body: bytes | None = None


class Line:
    """One connection to a service."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def ask(self, question: Question) -> tuple[float, Any]:
        """Milliseconds until the last byte of the response, and its body."""
        headers = {**self._headers, **({} if question.body is None else {"Content-Type": "application/json"})}
        begun_ns = time.perf_counter_ns()
        self._connection.request("GET" if question.body is None else "POST", question.path, question.body, headers)
        response = self._connection.getresponse()
        raw = response.read()
        ms = (time.perf_counter_ns() - begun_ns) / 1e6
        if response.status != 200:
            raise RuntimeError(f"{question.path}: {response.status} {raw[:300]!r}")
        return ms, json.loads(raw)

    def close(self) -> None:
        self._connection.close()


def questions(filled: Filled) -> Iterator[Question]:
    for each in LISTS:
        yield Question(each, f"/v1/{each}?limit=200")
    yield Question("metrics", "/v1/metrics")
    yield Question("scale", "/v1/scale/default")
    yield Question("who works on what", "/v1/jobs?state=leased&limit=200")
    for chosen in FILTERS:
        yield Question(f"jobs {told(chosen)}", f"/v1/jobs?{urlencode({**chosen, 'limit': 50})}")
    for id_ in filled.ids[::5]:
        yield Question("a job", f"/v1/jobs/{id_}")
        yield Question("why", f"/v1/jobs/{id_}/why")
    yield Question("news", "/v1/events?after=0&wait_seconds=0")


def told(chosen: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in chosen.items()) or "of any kind"


def asked(line: Line, filled: Filled, rounds: int, pages_max: int = 3) -> dict[str, list[float]]:
    """The milliseconds of every request. Lists of jobs are read beyond their first page."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for question in questions(filled):
            ms, answer = line.ask(question)
            found.setdefault(question.name, []).append(ms)
            if question.name.startswith("jobs "):
                turn_over(line, question, answer, found, pages_max)
    return found


def turn_over(line: Line, first: Question, answer: Any, found: dict[str, list[float]], pages_max: int) -> None:
    for _ in range(pages_max - 1):
        if answer["next"] is None:
            return
        name = f"{first.name}, next page"
        ms, answer = line.ask(Question(name, f"{first.path}&{urlencode({'cursor': answer['next']})}"))
        found.setdefault(name, []).append(ms)


def previewed(line: Line) -> dict[str, float]:
    """How long it takes to count the jobs that a change would affect."""
    found = {}
    for verb, chosen in CHANGES:
        question = Question(f"{verb} {told(chosen)}", f"/v1/jobs/{verb}", json.dumps({"filter": chosen}).encode())
        found[question.name], _ = line.ask(question)
    return found
