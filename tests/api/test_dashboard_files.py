"""The dashboard's files: served complete and unchanged, cached by browsers, and nothing else from the disk."""

import re
from pathlib import Path

import pytest
from tests.api.running_service import Served

from leaseway.api.routes.dashboard import ASSETS, CSP, accepts_gzip

STATIC = Path("src/leaseway/dashboard/static")
FIRST_PAINT_BYTES_MAX = 150_000
IMPORT = re.compile(r'(?:^|\n)(?:import|export)\s[^;]*?from\s+"([^"]+)"|(?:^|\n)import\s+"([^"]+)"')


@pytest.fixture(params=["sqlite"])
def store_url(tmp_path: Path) -> str:
    """One store is enough: these tests do not use it."""
    return f"sqlite:///{tmp_path / 'work.db'}"


async def test_the_page_leads_to_files_that_exist(served: Served) -> None:
    """One wrong asset URL leaves the dashboard blank."""
    page = await served.client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page.text)
    assert len(named) > 5
    for address in named:
        assert (await served.client.get(address)).status_code == 200, address


async def test_modules_import_only_what_is_served() -> None:
    """A wrong import path fails only when a user opens the page that needs it."""
    for name in ASSETS.names:
        if name.endswith(".js"):
            for address in imports_of(name):
                assert ASSETS.get(ASSETS.version, address) is not None, f"{name} imports {address}"


async def test_the_first_paint_is_small() -> None:
    """On a slow connection, a dashboard of several megabytes takes too long to open."""
    page = ASSETS.page.body.decode()
    first = re.findall(r'"/assets/[^/]+/([^"]+)"', page)
    needed = reached_from([*first, "shell.js", "live.js", "pages/overview.js"])
    sizes = [len(found.gzipped) for name in needed if (found := ASSETS.get(ASSETS.version, name)) is not None]
    assert len(sizes) > 20
    assert len(ASSETS.page.gzipped) + sum(sizes) < FIRST_PAINT_BYTES_MAX / 2, "packed"
    raw = [len(found.body) for name in needed if (found := ASSETS.get(ASSETS.version, name)) is not None]
    assert len(ASSETS.page.body) + sum(raw) < FIRST_PAINT_BYTES_MAX, "for those who do not take gzip"


async def test_files_are_kept_for_good_and_the_page_is_asked_for_again(served: Served) -> None:
    """After an update, browsers must not show the old page, and unchanged files must not be sent again."""
    page = await served.client.get("/")
    assert page.headers["cache-control"] == "no-cache"
    again = await served.client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    script = await served.client.get(f"/assets/{ASSETS.version}/main.js")
    assert "immutable" in script.headers["cache-control"]
    assert script.content == (STATIC / "main.js").read_bytes()


async def test_an_old_address_is_not_answered_with_new_files(served: Served) -> None:
    """A mix of files from two versions causes errors that are hard to diagnose."""
    assert (await served.client.get("/assets/0000000000000000/main.js")).status_code == 404


@pytest.mark.parametrize(
    "name", ["../index.html", "..%2f..%2fapi/pages.py", "%2e%2e/%2e%2e/jsconfig.json", "", "lib", "lib/"]
)
async def test_nothing_else_on_the_disk_is_served(served: Served, name: str) -> None:
    """A path traversal would expose configuration and keys."""
    reply = await served.client.get(f"/assets/{ASSETS.version}/{name}")
    assert reply.status_code == 404


async def test_the_policy_lets_nothing_in_from_elsewhere(served: Served) -> None:
    """The second defence behind textContent: the browser refuses injected scripts and markup."""
    policy = (await served.client.get("/")).headers["content-security-policy"]
    assert policy == CSP
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy


async def test_nothing_is_loaded_from_elsewhere_and_nothing_is_made_from_text() -> None:
    """The policy would block it in the browser; this test finds it earlier."""
    for name in ASSETS.names:
        found = ASSETS.get(ASSETS.version, name)
        assert found is not None
        text = found.body.decode()
        hosts = set(re.findall(r"https?://[^\s\"'`<>$]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not hosts, f"{name}: {hosts}"
        forbidden = re.findall(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function)", text)
        assert not forbidden, f"{name}: {forbidden}"


@pytest.mark.parametrize(
    ("given", "takes"),
    [
        ("gzip, br", True),
        ("br;q=1, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("br", False),
        ("", False),
        ("x-gzip", False),
    ],
)
def test_only_who_accepts_gzip_gets_it(given: str, takes: bool) -> None:
    """A client that cannot unpack the file would show binary data."""
    assert accepts_gzip(given) is takes


async def test_a_packed_file_is_the_same_file(served: Served) -> None:
    """A stale packed copy would show some users an old dashboard."""
    address = f"/assets/{ASSETS.version}/lib/dom.js"
    packed = await served.client.get(address, headers={"Accept-Encoding": "gzip"})
    plain = await served.client.get(address, headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert packed.content == plain.content


def imports_of(name: str) -> list[str]:
    found = ASSETS.get(ASSETS.version, name)
    assert found is not None
    paths = [one or other for one, other in IMPORT.findall(found.body.decode())]
    return [normal(name, path) for path in paths]


def normal(name: str, path: str) -> str:
    parts = name.split("/")[:-1]
    for part in path.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def reached_from(names: list[str]) -> set[str]:
    seen: set[str] = set()
    waiting = list(names)
    while waiting:  # each file once
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports_of(name) if name.endswith(".js") else []
    return seen
