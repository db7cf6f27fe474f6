"""The disk of a MongoDB server is full: the server ends itself, and nothing that was acknowledged is lost."""

import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from leaseway.domain.errors import StoreFull, TransientError
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import JobFilter
from leaseway.ports.store import require_inspection
from leaseway.stores.mongodb import connection
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.job_store_contract.fixtures import id_of, new_job
from leaseway.testing.mongodb import MongoServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SMALL, LARGE = "96m", "512m"
TEXT_BYTES = 150_000


def mount(*options: str) -> None:
    ended = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if ended.returncode:
        pytest.skip(f"cannot make a small disk: {ended.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("cannot make a small disk: that needs root and the program mount")
    place = tmp_path / "small"
    place.mkdir()
    mount("-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(place))
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def fill(store: MongoStore) -> tuple[list[JobId], Exception]:
    """Submit until the disk is full; return the acknowledged jobs and the error."""
    acknowledged: list[JobId] = []
    for number in range(1, 2_000):
        text = base64.b64encode(os.urandom(TEXT_BYTES)).decode()  # cannot be compressed
        try:
            await store.jobs.submit([new_job(number, payload=f'"{text}"')])
        except (StoreFull, TransientError) as error:
            return acknowledged, error
        acknowledged.append(id_of(number))
    raise AssertionError("the disk did not fill up")


async def test_a_server_with_a_full_disk_loses_no_acknowledged_job(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MongoDB ends itself when its journal cannot be written. The submitter sees an error that can be repeated, and
    with more space everything that was acknowledged is there."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS_MAX", 1.0)
    server = MongoServer(disk / "server", (), replica_set=True)
    server.create()
    try:
        store = MongoStore(server.url)
        await store.open()
        acknowledged, _ = await fill(store)
        mount("-o", f"remount,size={LARGE}", str(disk))
        server.restart()
        stored = [job.id for job in await store.reads.jobs(JobFilter(), limit=1_000)]
        assert set(acknowledged) <= set(stored)
        assert len(stored) <= len(acknowledged) + 1, "the one whose outcome was unknown"
        await store.jobs.submit([new_job(5_000)])
        found = {finding.check: finding.text for finding in await require_inspection(store).health(deep=True)}
        assert "correct counters" in found["counters"]
        await store.close()
    finally:
        server.kill()
