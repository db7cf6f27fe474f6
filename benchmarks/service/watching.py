"""The dashboard in a browser: the time until a change is on the screen, and the size of the first screen.

This process changes a job by settling its lease; the browser reports when the text in the job's row has changed. Both
use the machine's clock: `performance.timeOrigin + performance.now()` counts from 1970, like `time.time()`.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks.harness import say
from benchmarks.service.place import Served, Size
from leaseway import App
from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import Token, WorkerId
from leaseway.domain.job import Lease, NewJob, Settlement, State

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
SEEN_MS_MAX = 30_000
WORKER = WorkerId("watched")
LEASE_US = 600_000_000
PAUSE_SECONDS = 0.35
"""Longer than the poll interval and not a multiple of it, so that changes fall anywhere between two polls."""

WATCH = """({id, word}) => {
  window.seen = new Promise((resolve) => {
    const look = () => {
      const row = document.querySelector(`tr[data-row="${id}"]`);
      if (!row || !row.textContent.includes(word)) return false;
      resolve(performance.timeOrigin + performance.now());
      return true;
    };
    if (look()) return;
    const observer = new MutationObserver(() => look() && observer.disconnect());
    observer.observe(document.body, {childList: true, subtree: true, characterData: true, attributes: true});
  });
}"""
BYTES = """() => {
  const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const files = all.filter((each) => !new URL(each.name).pathname.startsWith("/v1/"));
  const sum = (some) => some.reduce((total, each) => total + each.transferSize, 0);
  return {files: files.length, bytes: sum(all), asset_bytes: sum(files), paint_ms: paint ? paint.startTime : null};
}"""


def browser_path() -> str | None:
    if find_spec("playwright") is None:
        return None
    return next((path for path in map(shutil.which, CHROMIUM) if path), None)


def has_browser() -> bool:
    is_there = browser_path() is not None
    if not is_there:
        say("  not installed, and left out: a browser; install Chromium and playwright")
    return is_there


@asynccontextmanager
async def browsing() -> AsyncIterator["Browser"]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


# -- changes --------------------------------------------------------------------------------------------------------


async def seen_ms(service: Served, store_url: str, size: Size) -> list[float]:
    """From the call that changes the state to the row on the screen, for each change."""
    app = App(store_url)
    try:
        async with browsing() as browser:
            page = await browser.new_page()
            await page.goto(f"{service.url}/#/jobs")
            return [await seen_once(app, page, number) for number in range(size.changes)]
    finally:
        await app.close()


async def seen_once(app: App, page: "Page", number: int) -> float:
    """A job is submitted, leased and settled; the settlement is timed."""
    lease = await leased(app)
    await page.evaluate(WATCH, {"id": lease.id, "word": ""})
    await within(page)
    await page.evaluate(WATCH, {"id": lease.id, "word": "done"})
    await asyncio.sleep(PAUSE_SECONDS * (1 + number % 7 / 7))
    changed_at = time.time()
    await (await app.store()).jobs.exchange(Exchange(WORKER, (ended(lease),)))
    return await within(page) - changed_at * 1e3


async def within(page: "Page") -> float:
    async with asyncio.timeout(SEEN_MS_MAX / 1e3):
        return float(await page.evaluate("() => window.seen"))


def ended(lease: Lease) -> Settlement:
    return Settlement(id=lease.id, token=lease.token, state=State.DONE, result="1")


async def leased(app: App) -> Lease:
    store, ids = await app.store(), app.world.ids
    job = NewJob(id=ids.job(), kind="watched", payload="{}", lease_us=LEASE_US)
    await store.jobs.submit([job])
    answer = await store.jobs.exchange(Exchange(WORKER, (), Wants(("default",), 1, Token(ids.job()))))
    (lease,) = answer.leases
    return lease


# -- the first screen -----------------------------------------------------------------------------------------------


async def first_screen(service: Served) -> dict[str, Any]:
    """Bytes on the wire until the page is idle, headers included, in a browser without a cache."""
    async with browsing() as browser:
        page = await browser.new_page()
        await page.goto(f"{service.url}/")
        await page.wait_for_selector("main :is(h1, h2)")
        await page.wait_for_load_state("networkidle")
        await page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
        found: dict[str, Any] = await page.evaluate(BYTES)
        return found
