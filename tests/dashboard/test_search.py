"""A rare job in a large store is found by the page of jobs."""

from pathlib import Path

from playwright.async_api import Page, expect
from tests.api.running_service import Served
from tests.dashboard.jobs_app import serve_jobs_app, submit_job

from leaseway.domain.inspection import SCAN_MAX

BULK = 1_000


async def buried(served: Served) -> str:
    """The id of a job behind more others than one search step reads."""
    id_ = await submit_job(served, "broken", text="needle")
    for _ in range(SCAN_MAX // BULK + 1):
        item = {"kind": "add", "arguments": {"a": 1}}
        reply = await served.client.post("/v1/jobs/bulk", json={"items": [item] * BULK})
        assert reply.status_code == 200
    return id_


async def test_a_rare_job_is_found_behind_thousands_of_others(page: Page, tmp_path: Path) -> None:
    """“No job matches” would be wrong if the search had only stopped early."""
    async with serve_jobs_app(tmp_path, page) as served:
        needle = await buried(served)
        first = (await served.client.get("/v1/jobs", params={"kind": "broken"})).json()
        assert (first["items"], first["next"] is None) == ([], False)
        asked = {"kind": "broken", "cursor": first["next"]}
        second = (await served.client.get("/v1/jobs", params=asked)).json()
        assert ([job["id"] for job in second["items"]], second["next"]) == ([needle], None)
        counted = await served.client.post("/v1/jobs/cancel", json={"filter": {"kind": "broken"}})
        assert counted.json() == {"cancelled": 0, "matching": 1, "more": False}
        await page.goto(f"{served.url}/#/jobs?kind=broken")
        await expect(page.locator("tr[data-row]")).to_have_count(1)
        await expect(page.locator(f"tr[data-row='{needle}']")).to_contain_text("ready")
        await page.goto(f"{served.url}/#/jobs?kind=unknown")
        await expect(page.locator(".empty")).to_contain_text("No job matches")
