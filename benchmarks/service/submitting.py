"""Submissions over HTTP, one by one and a thousand at a time, by a tenant with a key, into a durable PostgreSQL."""

import json
from typing import Any, NamedTuple

from benchmarks.postgres.database import new_database
from benchmarks.service.hammer import hammered, request_of
from benchmarks.service.place import Served, Size, cpu_seconds, served
from leaseway.bench.measure import percentile
from leaseway.bench.processes import TEXT

JOB = {"kind": "noop", "arguments": {"text": TEXT}}


class Submitted(NamedTuple):
    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU time of the API process per request."""
    load_cpu_us: float


def one_by_one(size: Size, server_url: str) -> Submitted:
    with new_database(server_url) as url, served(url) as service:
        return submitted(service, size)


def submitted(service: Served, size: Size, seconds: float | None = None) -> Submitted:
    request = request_of(service, "/v1/jobs", json.dumps(JOB).encode())
    before, warm = cpu_seconds(service.pid), min(size.seconds / 3, 1.0)
    asked = {"connections": size.connections, "seconds": seconds or size.seconds, "warm_seconds": warm, "status": 202}
    found = hammered(service, request, **asked)
    return of(found, cpu_seconds(service.pid) - before, found["seconds"] + warm)


def of(found: dict[str, Any], used_seconds: float, busy_seconds: float) -> Submitted:
    """From the measurements of the load process. The warm-up was as busy as the rest."""
    rate, waits = found["count"] / found["seconds"], found["waits_ms"]
    each_us = 1e6 / (rate * busy_seconds)
    own_us = found["own_cpu_seconds"] * each_us
    return Submitted(rate, percentile(waits, 50), percentile(waits, 99), used_seconds * each_us, own_us)


def in_bulk(size: Size, server_url: str) -> float:
    """Jobs per second, from one connection that waits for each response."""
    with new_database(server_url) as url, served(url) as service:
        body = json.dumps({"items": [JOB] * size.bulk_jobs}).encode()
        request = request_of(service, "/v1/jobs/bulk", body)
        found = hammered(service, request, connections=2, seconds=60.0, calls=size.bulk_calls)
        return float(found["count"] * size.bulk_jobs / found["seconds"])
