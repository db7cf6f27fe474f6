"""Worker processes on MongoDB are killed, or frozen until their leases have expired: no job is lost or done twice."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.harness import Lab, Process, Record, eventually
from tests.faults.jobs_app import make_app
from tests.mongodb_collections import empty_database

from leaseway.domain.ids import JobId
from leaseway.ports.store import require_inspection
from leaseway.testing.mongodb import MongoServer

pytestmark = pytest.mark.slow

SECONDS_MAX = 60


class MongoLab(Lab):
    """The processes of the fault tests on another store."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url, self.app = url, make_app(url, self.folder)

    def job(self, id_: str) -> Record:
        async def read() -> Record:
            reads = (await self.app.store()).reads
            job = await reads.job(JobId(id_))
            assert job is not None
            codes = [error.code for error in await reads.errors(JobId(id_))]
            return {name: getattr(job, name) for name in ("finished_at", "result", "attempts", "fence")} | {
                "state": job.state.value, "codes": codes,
            }  # fmt: skip

        return self.app.sync(read())

    def check_store(self) -> None:
        async def check() -> list[str]:
            found = await require_inspection(await self.app.store()).health(deep=True)
            return [finding.text for finding in found if finding.check == "counters"]

        (text,) = self.app.sync(check())
        assert "correct counters" in text


@pytest.fixture
def lab(tmp_path: Path, mongodb: MongoServer) -> Iterator[MongoLab]:
    url = mongodb.url.replace("/leaseway", "/worker_faults", 1)
    asyncio.run(empty_database(url))
    lab = MongoLab(tmp_path, url)
    try:
        yield lab
        lab.check_store()
    finally:
        lab.close()


def run_by(lab: MongoLab, worker: Process) -> str:
    job = lab.submit("held", n=1)
    lab.await_event("start", SECONDS_MAX, job=job, pid=worker.pid)
    return job


def taken_over(lab: MongoLab, job: str, by: Process) -> int:
    """The fence of the first attempt in another worker, which may end now. On a slow machine, leases may expire more
    often than once."""
    fence = int(lab.await_event("start", SECONDS_MAX, job=job, pid=by.pid)["fence"])
    for later in range(fence, fence + 20):
        lab.release(f"1-{later}")
    return fence


def test_a_killed_workers_job_runs_again(lab: MongoLab) -> None:
    """The store learns of the dead process through the expired lease only."""
    first = lab.worker()
    job = run_by(lab, first)
    first.kill()
    second = lab.worker()
    fence = taken_over(lab, job, second)
    row = lab.await_finished(job, SECONDS_MAX)
    assert (row["state"], row["result"]) == ("done", str(second.pid))
    assert row["attempts"] == row["fence"] >= fence > 1
    assert row["codes"] == (["lease_expired"] * (row["fence"] - 1))[-10:]
    assert second.stop(SECONDS_MAX) == 0


def test_a_late_result_of_a_frozen_worker_is_refused(lab: MongoLab) -> None:
    """The handler ends right after the worker continues, when another worker has settled the job."""
    first = lab.worker()
    job = run_by(lab, first)
    first.send(signal.SIGSTOP)
    second = lab.worker()
    fence = taken_over(lab, job, second)
    lab.await_finished(job, SECONDS_MAX)
    assert second.stop(SECONDS_MAX) == 0
    for earlier in range(1, fence):
        lab.release(f"1-{earlier}")
    first.send(signal.SIGCONT)
    eventually(lambda: lab.history("settlement_refused", job=job) + lab.history("lease_lost", job=job), SECONDS_MAX)
    assert lab.await_finished(lab.submit("quick", n=2), SECONDS_MAX)["result"] == str(first.pid)
    row = lab.job(job)
    assert (row["state"], row["result"]) == ("done", str(second.pid))
    assert row["fence"] >= fence > 1
    assert first.stop(SECONDS_MAX) == 0
