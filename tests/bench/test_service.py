"""The benchmarks of the service run and send correct requests. Measured values are not checked."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.postgres.database import new_database
from benchmarks.service.asking import FILTERS, Line, Question, asked, previewed
from benchmarks.service.hammer import hammered, is_whole, request_of
from benchmarks.service.million import Filled, fill
from benchmarks.service.place import Served, served
from benchmarks.service.submitting import of

from leaseway import App
from leaseway.domain.identity import Role
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import Job, State
from leaseway.domain.lane import LaneCount
from leaseway.testing.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
JOBS = 600


@pytest.mark.campaign
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the processor time of processes is read from /proc")
def test_a_quick_run_of_the_suite_ends_with_its_figures() -> None:
    """Otherwise a broken benchmark would be noticed only when a release needs its figures."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--suite", "service", "service_listeners"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "./dev bench --quick --suite service service_listeners" in answer.stdout
    assert "20 of them received events" in answer.stdout


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_every_request_is_answered_by_a_store_with_realistic_content(
    database: str, tmp_path: Path, server: PostgresServer
) -> None:
    """Requests to an empty store and refused requests are fast, so neither must be measured by mistake."""
    if database == "sqlite":
        look_into(f"sqlite:///{tmp_path}/work.db")
    else:
        with new_database(server.url) as url:
            look_into(url)


def look_into(url: str) -> None:
    filled = fill(url, JOBS)
    lanes, jobs = asyncio.run(seen_in(url))
    counted = sum(
        lane.ready + lane.scheduled + lane.leased + lane.done + lane.failed + lane.cancelled for lane in lanes
    )
    assert len(jobs) == counted == JOBS
    assert sum(lane.failed for lane in lanes) == Counter(job.state for job in jobs)[State.FAILED] > 0
    assert {job.id for job in jobs} >= set(filled.ids)
    with served(url, role=Role.OPERATOR) as service:
        ask_everything(service, filled)


async def seen_in(url: str) -> tuple[list[LaneCount], list[Job]]:
    app = App(url)
    store = await app.store()
    try:
        return list(await store.reads.lanes()), await store.reads.jobs(JobFilter(), limit=1_000)
    finally:
        await app.close()


def ask_everything(service: Served, filled: Filled) -> None:
    line = Line(service.url, service.key)
    found = asked(line, filled, 1)
    assert sum(name.startswith("jobs ") and not name.endswith("next page") for name in found) == len(FILTERS)
    assert len(previewed(line)) > 0
    with pytest.raises(RuntimeError, match="404"):
        line.ask(Question("nothing", "/v1/nothing"))
    line.close()
    refused = request_of(service._replace(key="wrong"), "/v1/jobs", b"{}")
    with pytest.raises(RuntimeError, match="401"):
        hammered(service, refused, connections=2, seconds=5.0, warm_seconds=0.0)
    body = json.dumps({"kind": "noop", "arguments": {}}).encode()
    request, asked_for = request_of(service, "/v1/jobs", body), {"calls": 7, "status": 202, "warm_seconds": 0.0}
    answered = hammered(service, request, connections=2, seconds=60.0, **asked_for)
    assert (answered["count"], len(answered["waits_ms"])) == (7, 7)


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (b"HTTP/1.1 202 Accepted\r\nContent-Length: 3\r\n\r\nabc", True),
        (b"HTTP/1.1 202 Accepted\r\nContent-Length: 3\r\n\r\nab", False),
        (b"HTTP/1.1 202 Accepted\r\nContent-Le", False),
    ],
)
def test_a_response_counts_when_it_is_complete(data: bytes, whole: bool) -> None:
    """Sending the next request after a partial response would measure a part of the time."""
    assert is_whole(data) == whole


def test_processor_time_of_the_warm_up_is_not_charged_to_the_measured_requests() -> None:
    """Otherwise each request would seem to cost more than it does."""
    found = {"count": 400, "seconds": 4.0, "waits_ms": [1.0, 2.0, 3.0], "own_cpu_seconds": 0.05}
    submitted = of(found, used_seconds=0.5, busy_seconds=5.0)
    assert (submitted.per_second, submitted.cpu_us, submitted.load_cpu_us) == (100.0, 1000.0, 100.0)
    assert (submitted.p50_ms, submitted.p99_ms) == (2.0, 3.0)
