"""GET / ─► the dashboard: one HTML page and its files.

All files are read once, when the service starts; a path selects among these files only. Asset URLs contain a hash of
all files, so that browsers can cache them forever and never mix files of two versions. The page itself is revalidated
each time, usually with 304.
"""

import gzip
import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import Request
from msgspec import Struct
from starlette.responses import Response

from leaseway.api.errors import Problem
from leaseway.api.routing import OPEN, Routes

routes = Routes("", "pages")

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
}
PAGE = "index.html"
PLACEHOLDER = "{assets}"
"""Stands in the page for the URL prefix of its files."""
DEPTH_MAX = 4
IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"
REFUSED = ("q=0", "q=0.0", "q=0.00", "q=0.000")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Only files of this service, nothing inline, and text never becomes markup: the browser enforces it."""


class Asset(Struct, frozen=True):
    body: bytes
    gzipped: bytes
    media_type: str
    etag: str


class Assets:
    """The files of the dashboard, read when the service starts."""

    def __init__(self, root: Traversable) -> None:
        found = dict(sorted(read_files(root)))
        self.version = short_hash(b"".join(f"{name}\0".encode() + body for name, body in found.items()))
        page = found.pop(PAGE).replace(PLACEHOLDER.encode(), f"/assets/{self.version}".encode())
        self.page = make_asset(PAGE, page)
        self._by_name = {name: make_asset(name, body) for name, body in found.items()}

    def get(self, version: str, name: str) -> Asset | None:
        return self._by_name.get(name) if version == self.version else None

    @property
    def names(self) -> list[str]:
        return list(self._by_name)


def read_files(folder: Traversable, prefix: str = "", depth: int = 0) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir() and depth < DEPTH_MAX:
            found += read_files(entry, f"{prefix}{entry.name}/", depth + 1)
        elif file_suffix(entry.name) in MEDIA_TYPES:
            found.append((f"{prefix}{entry.name}", entry.read_bytes()))
    return found


def file_suffix(name: str) -> str:
    return name.rpartition(".")[2]


def short_hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def make_asset(name: str, body: bytes) -> Asset:
    return Asset(body, gzip.compress(body, mtime=0), MEDIA_TYPES[file_suffix(name)], f'W/"{short_hash(body)}"')


ASSETS = Assets(files("leaseway") / "dashboard" / "static")


@routes.get("/", OPEN, include_in_schema=False)
async def page(request: Request) -> Response:
    return asset_response(request, ASSETS.page, REVALIDATE)


@routes.get("/assets/{version}/{name:path}", OPEN, include_in_schema=False)
async def asset(request: Request, version: str, name: str) -> Response:
    found = ASSETS.get(version, name)
    if found is None:
        raise Problem(404, "not_found", "there is no such file; the service may have been upgraded: reload the page")
    return asset_response(request, found, IMMUTABLE)


def asset_response(request: Request, found: Asset, caching: str) -> Response:
    headers = {"ETag": found.etag, "Cache-Control": caching, "Content-Security-Policy": CSP, "Vary": "Accept-Encoding"}
    if matches_etag(request.headers.get("if-none-match", ""), found.etag):
        return Response(status_code=304, headers=headers)
    if not accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(found.body, media_type=found.media_type, headers=headers)
    return Response(found.gzipped, media_type=found.media_type, headers={**headers, "Content-Encoding": "gzip"})


def matches_etag(given: str, etag: str) -> bool:
    """ETags are weak, because a compressed body is the same page; some clients drop the W/ prefix."""
    return any(tag.strip() in ("*", etag, etag.removeprefix("W/")) for tag in given.split(","))


def accepts_gzip(given: str) -> bool:
    """`gzip;q=0` refuses gzip."""
    wanted = (part.partition(";") for part in given.lower().split(","))
    return any(name.strip() == "gzip" and quality.replace(" ", "") not in REFUSED for name, _, quality in wanted)
