"""A real Chromium: one that is installed, otherwise one that needs neither root nor packages of the system.

LEASEWAY_CHROMIUM=/path/to/chrome   this one and no other
LEASEWAY_CHROMIUM=fetch             the fetched one, even if another is installed
"""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from playwright.async_api import Browser, ConsoleMessage, Error, Page, Playwright, Request, async_playwright
from tests.archives import extract
from tests.dashboard.fetched import CHROMIUM, NotFetchedError, fetched, node
from tests.programs import find_installed

CHOICE = "LEASEWAY_CHROMIUM"
FETCH = "fetch"
NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
PARTS = ["chromium", "al2023.tar", "fonts.tar"]
"""The browser, libraries that it needs, and a font: without one, text has no size, and nothing is ever visible."""

INFLATE = """
const { createReadStream, createWriteStream } = require("fs");
const { pipeline } = require("stream/promises");
const { createBrotliDecompress } = require("zlib");
const [folder, ...parts] = process.argv.slice(1);
for (const part of parts) {
  const packed = createReadStream(`${folder}/bin/${part}.br`);
  pipeline(packed, createBrotliDecompress(), createWriteStream(`${folder}/${part}`));
}
"""
INFLATE_SECONDS_MAX = 120
WAIT_MS_MAX = 30_000
"""Nothing takes so long, except on a machine that has something else to do."""
HERE = ("http://127.0.0.1:", "data:", "blob:")
FONTS = """<?xml version="1.0"?>
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""


class Executable(NamedTuple):
    path: str
    environment: dict[str, str]


@contextlib.asynccontextmanager
async def browsing(folder: Path, say: Callable[[str], None]) -> AsyncIterator[Browser]:
    """`NotFetchedError` if there is no browser, and none to be had. `folder` is for what it writes."""
    with contextlib.suppress(NotFetchedError):
        # Playwright's own wants a library that a bare system does not have.
        os.environ.setdefault("PLAYWRIGHT_NODEJS_PATH", str(node()))
    async with async_playwright() as playwright:
        browser = await launched(playwright, folder, say)
        try:
            yield browser
        finally:
            await browser.close()


async def launched(playwright: Playwright, folder: Path, say: Callable[[str], None]) -> Browser:
    """The first that runs: what is installed may be a stub of a package that is not."""
    chosen = os.environ.get(CHOICE, "")
    if chosen and chosen != FETCH:
        return await launch(playwright, Executable(chosen, {}))
    for executable in installed() if not chosen else ():
        with contextlib.suppress(Error):
            return await launch(playwright, executable)
    return await launch(playwright, fetched_chromium(folder, say))


async def launch(playwright: Playwright, executable: Executable) -> Browser:
    # Inside a container root has no sandbox, and the pages are our own.
    return await playwright.chromium.launch(
        executable_path=executable.path,
        args=["--no-sandbox"],
        env={**os.environ, **executable.environment},
    )


def installed() -> Iterator[Executable]:
    for name in NAMES:
        if path := find_installed(name):
            yield Executable(path, {})


def fetched_chromium(folder: Path, say: Callable[[str], None]) -> Executable:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise NotFetchedError(f"for this machine none is fetched: install Chromium, or name it with {CHOICE}")
    home = fetched(CHROMIUM, say, inflate)
    # It names its fonts by their full path, and checkouts are moved.
    fonts = folder / "fonts.conf"
    fonts.write_text(FONTS.format(fonts=home / "fonts", cache=folder / "fonts-cache"))
    return Executable(str(home / "chromium"), {"LD_LIBRARY_PATH": str(home / "lib"), "FONTCONFIG_FILE": str(fonts)})


def inflate(package: Path) -> None:
    command = [str(node()), "-e", INFLATE, str(package), *PARTS]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=INFLATE_SECONDS_MAX)
    shutil.rmtree(package / "bin")
    (package / "chromium").chmod(0o755)
    for part in package.glob("*.tar"):
        extract(part, package)
        part.unlink()


@contextlib.asynccontextmanager
async def paged(browser: Browser, allowed: list[str]) -> AsyncIterator[Page]:
    """An empty page. When it ends, the browser has not complained: no error, no warning, nothing that the policy of the
    service forbids, and no question to anybody else. But for what holds something of `allowed`."""
    context = await browser.new_context(locale="en-US", reduced_motion="reduce")
    page = await context.new_page()
    page.set_default_timeout(WAIT_MS_MAX)
    complaints = complaints_of(page)
    try:
        yield page
    finally:
        await context.close()
    left = [each for each in complaints if not any(part in each for part in allowed)]
    assert not left, f"the browser complains: {left}"


def complaints_of(page: Page) -> list[str]:
    """Grows while the page is there."""
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(f"{message.text} ({message.location['url']})")

    def look(request: Request) -> None:
        if not request.url.startswith(HERE):
            complaints.append(f"asked elsewhere: {request.url}")

    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", look)
    return complaints
