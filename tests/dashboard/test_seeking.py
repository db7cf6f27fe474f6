"""What is rare in a large store is found, by the page of jobs as by whoever asks the service."""

from pathlib import Path

from playwright.async_api import Page, expect
from tests.api.serving import Served
from tests.dashboard.shop import shop, submitted

from leaseway.domain.inspection import SCAN_MAX

BULK = 1_000


async def buried(served: Served) -> str:
    """The id of a job behind more others than one look goes through."""
    id_ = await submitted(served, "broken", text="needle")
    for _ in range(SCAN_MAX // BULK + 1):
        item = {"kind": "add", "arguments": {"a": 1}}
        reply = await served.client.post("/v1/jobs/bulk", json={"items": [item] * BULK})
        assert reply.status_code == 200
    return id_


async def test_what_is_rare_is_found_behind_thousands_of_others(page: Page, tmp_path: Path) -> None:
    """“No job matches” would be a lie, if it meant that nobody has looked further."""
    async with shop(tmp_path, page) as served:
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
