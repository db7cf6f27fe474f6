"""Imports of the service in a real browser: started from the page, and followed on the map to their end."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Page, expect
from tests.api.running_service import Served, run_service
from tests.dashboard.accessibility import accessibility_problems, resize
from tests.dashboard.test_pages import BRIGHT, SIDEWAYS

from leaseway import App
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.shard_jobs import register_jobs
from leaseway.testing.fake_open_charge_map import Listing, fake_api

SPEC = """
version = 1
[source]
name = "things"
base_url = "{url}"
limits = ["1000/second"]
[resource]
path = "/offset/things"
records = "$.items"
key = "id"
page = {{ cursor = "offset", limit_param = "limit", limit = 10, short_page_is_end = true }}
[resource.on_bad_row]
max_ratio = 0.5
[resource.columns]
size = {{ path = "size", type = "integer" }}
{columns}
[sink]
url = "sqlite:///{sink}"
table = "things"
"""
PLACED = 'lat = { path = "lat", type = "real" }\nlon = { path = "lon", type = "real" }'
MARKUP = '<img src=x onerror="document.title=1">'
RECORDS = [{"id": n, "size": n if n != 7 else MARKUP, "lat": 2.0 * n, "lon": -5.0 * n} for n in range(1, 26)]
PAINTED = """() => {
  const painted = document.querySelector(".map-points");
  const canvas = Object.assign(document.createElement("canvas"), {width: painted.width, height: painted.height});
  const ink = canvas.getContext("2d", {willReadFrequently: true});
  ink.drawImage(painted, 0, 0);
  const {data} = ink.getImageData(0, 0, canvas.width, canvas.height);
  return data.some((value, at) => at % 4 === 3 && value > 0);
}"""
RUN = "/#/imports/things/first"


@asynccontextmanager
async def importing(folder: Path, page: Page, columns: str = PLACED) -> AsyncIterator[Served]:
    async with fake_api(0, listings={"things": Listing(RECORDS)}) as api:
        specs = folder / "specs"
        specs.mkdir()
        spec = SPEC.format(url=api.url, sink=folder / "data.db", columns=columns)
        (specs / "things.toml").write_text(spec)
        async with run_service(App(f"sqlite:///{folder / 'work.db'}"), imports=str(specs)) as served:
            assert served.service.import_monitor is not None
            served.service.import_monitor.poll_seconds = 0.1  # so that the test does not wait
            yield served
            # Streams end with the page, so that the service does not have to wait for them.
            await page.goto("about:blank")


async def start(served: Served, run: str = "first", **body: Any) -> None:
    answer = await served.client.post("/v1/imports/things/runs", json={"run": run, **body})
    assert answer.status_code == 202, answer.text


async def work(served: Served, folder: Path) -> None:
    """As `leaseway import work --until-empty` does."""
    parts = load_import(folder / "specs" / "things.toml")
    await parts.sink.open()
    app = App(served.app.url)
    register_jobs(app, parts)
    await app.run_worker(queues=[parts.queue], until_empty=True)
    await app.close()
    await parts.sink.close()


async def test_a_run_is_started_from_the_page_and_watched_to_its_end(page: Page, tmp_path: Path) -> None:
    """Everything but the worker happens on the page, and nothing needs a reload."""
    async with importing(tmp_path, page) as served:
        await page.goto(f"{served.url}/#/imports")
        await expect(page.locator(".empty")).to_contain_text("No runs yet")
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator("dialog")).to_contain_text("1 shard")
        await page.get_by_label("Name of the run").fill("first")
        await page.locator("dialog button[type=submit]").click()
        await expect(page.locator("h1")).to_have_text("things")
        await expect(page.locator(".job-title .chip")).to_have_text("running")
        # A new user is told what to do next.
        await expect(page.locator(".nobody")).to_contain_text("leaseway import work things.toml")
        assert not await page.evaluate(PAINTED)
        await work(served, tmp_path)
        await expect(page.locator(".job-title .chip")).to_have_text("complete")
        await expect(page.locator(".nobody")).to_be_hidden()
        await expect(page.locator(".tile-value").first).to_have_text("24")
        await expect(page.locator("lw-map + .muted")).to_contain_text("24 places")
        await page.wait_for_function(PAINTED)
        await expect(page.locator(".shard[data-tone=done]")).to_have_count(1)
        await expect(page.locator(".report")).to_contain_text("New rows")
        await page.goto(f"{served.url}/#/imports")
        await expect(page.locator("tr[data-row]", has_text="first")).to_contain_text("1 of 1 shard ended")


async def test_a_run_is_planned_on_the_page_before_it_starts(page: Page, tmp_path: Path) -> None:
    """How long it takes and with how many workers is a question before the first request of the import is paid."""
    async with importing(tmp_path, page) as served:
        await page.goto(f"{served.url}/#/imports")
        await page.get_by_role("button", name="Plan things").click()
        await page.get_by_label("Rows").fill("400")
        await page.get_by_role("button", name="Simulate").click()
        dialog = page.locator("dialog", has_text="Plan of things")
        await expect(dialog).to_contain_text("1 worker")
        await expect(dialog).to_contain_text(re.compile(r"4\d requests"))
        await expect(dialog).to_contain_text("more do not help")
        await page.screenshot(path=os.environ.get("LEASEWAY_PLAN_PICTURE") or tmp_path / "plan.png")
        await dialog.get_by_role("button", name="Close").click()
        assert (await served.client.get("/v1/imports/things/runs")).json()["items"] == []


async def test_a_run_that_stopped_is_resumed_with_more_requests(page: Page, tmp_path: Path) -> None:
    """The budget of the run is used up: the page asks for a larger one and does not resume without it."""
    async with importing(tmp_path, page) as served:
        await start(served, requests_max=1)
        await work(served, tmp_path)
        await page.goto(f"{served.url}{RUN}")
        await expect(page.locator(".job-title .chip")).to_have_text("partial")
        await page.get_by_role("button", name="Resume").click()
        await expect(page.locator("dialog")).to_contain_text("has used its budget")
        await page.locator("dialog input").fill("50")
        await page.locator("dialog button[type=submit]").click()
        await expect(page.locator(".job-title .chip")).to_have_text("running")
        await work(served, tmp_path)
        await expect(page.locator(".job-title .chip")).to_have_text("complete")


async def test_quarantined_records_are_shown_and_discarded(page: Page, tmp_path: Path) -> None:
    """Their contents stay text, whatever they contain."""
    async with importing(tmp_path, page) as served:
        await start(served)
        await work(served, tmp_path)
        await page.goto(f"{served.url}{RUN}")
        row = page.get_by_role("table", name="Quarantine").locator("tr[data-row]")
        await expect(row).to_contain_text("size")
        await row.locator("summary").click()
        await expect(row.locator("pre")).to_contain_text("onerror")
        assert await page.locator("img[src=x]").count() == 0
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator(".toast")).to_contain_text("1 record kept in quarantine")
        await row.get_by_role("button", name="Discard record 7").click()
        await page.locator("dialog button[type=submit]").click()
        await expect(row).to_have_count(0)


async def test_rows_without_coordinates_have_no_map(page: Page, tmp_path: Path) -> None:
    """An empty map would look like an error."""
    async with importing(tmp_path, page, columns="") as served:
        await start(served)
        await page.goto(f"{served.url}{RUN}")
        await expect(page.locator(".shard")).to_have_count(1)
        await expect(page.locator("lw-map")).to_be_hidden()


async def test_the_page_of_a_run_is_accessible(page: Page, tmp_path: Path, axe: str) -> None:
    """With a screen reader, at night, and on a phone. See the screenshots in the folder of the test."""
    async with importing(tmp_path, page) as served:
        await start(served)
        await work(served, tmp_path)
        await page.goto(f"{served.url}{RUN}")
        await expect(page.locator(".report")).to_be_visible()
        await page.wait_for_function(PAINTED)
        assert await accessibility_problems(page, axe) == []
        await page.emulate_media(color_scheme="dark", reduced_motion="reduce")
        for width in (1280, 390):
            await resize(page, width)
            assert await page.evaluate(SIDEWAYS) == []
            await page.screenshot(path=tmp_path / f"dark-{width}.png", full_page=True)
            assert await page.evaluate(BRIGHT) == []
