"""The pages about imports in a real browser, with a real service: runs that are derived from their jobs."""

from pathlib import Path

from playwright.async_api import Page, expect
from tests.api.running_service import Served
from tests.dashboard.jobs_app import serve_jobs_app


async def planned(served: Served, run: str, *shards: str) -> None:
    """One job per shard, submitted directly to the store, as imports do."""
    for key in shards:
        arguments = {"run": run, "shard": f"ocm/{key}/0f0f"}
        await served.app.submit(served.app.bind("import:ocm", arguments, queue="imports:ocm"))


async def test_without_imports_the_page_says_how_to_begin(page: Page, tmp_path: Path) -> None:
    """An empty page does not tell a new user what to do next."""
    async with serve_jobs_app(tmp_path, page) as served:
        await page.goto(f"{served.url}/#/imports")
        await expect(page.locator(".empty")).to_contain_text("leaseway import run")


async def test_a_run_is_watched_to_its_end(page: Page, tmp_path: Path) -> None:
    """Two runs of one source are two rows, each with its own shards and rows."""
    async with serve_jobs_app(tmp_path, page) as served:
        await planned(served, "first", "id=0-100", "id=100-200")
        await served.settle()
        await planned(served, "second", "id=0-100")
        await page.goto(f"{served.url}/#/imports")
        rows = page.locator("tr[data-row]")
        await expect(rows).to_have_count(2)
        await expect(rows.nth(0)).to_contain_text("waiting")
        await expect(rows.nth(1)).to_contain_text("2 of 2 shards ended")
        await expect(rows.nth(1)).to_contain_text("140")
        await served.settle()
        await expect(rows.nth(0)).to_contain_text("complete")


async def test_shards_are_a_grid_and_the_failed_are_retried(page: Page, tmp_path: Path) -> None:
    """An operator must see which parts failed and must be able to retry only those."""
    async with serve_jobs_app(tmp_path, page) as served:
        await planned(served, "first", "id=0-100", "id=100-200", "bad")
        await served.settle()
        await page.goto(f"{served.url}/#/imports/ocm/first")
        await expect(page.locator(".shard")).to_have_count(3)
        await expect(page.locator(".job-title .chip")).to_have_text("partial")
        await page.get_by_role("button", name="Retry failed shards").click()
        await expect(page.locator("dialog")).to_contain_text("1 job")
        await page.locator("dialog button[type=submit]").click()
        await expect(page.locator(".job-title .chip")).to_have_text("waiting")


async def test_a_run_without_jobs_leads_to_its_report(page: Page, tmp_path: Path) -> None:
    """Jobs are pruned, but the sink still contains the run."""
    async with serve_jobs_app(tmp_path, page) as served:
        await page.goto(f"{served.url}/#/imports/ocm/long-ago")
        await expect(page.locator(".empty")).to_contain_text("leaseway import report ocm.toml --run long-ago")
