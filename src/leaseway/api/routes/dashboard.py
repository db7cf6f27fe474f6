"""GET / ─► the dashboard: one page, and the files that it is made of.

All files are read once, when the service starts: what is not among them is not there, whatever a path says. Their
addresses carry a hash of all of them, so that browsers keep them for good, and a renewed service is never met by a mix
of old and new ones. The page itself is asked for each time, and mostly answered by 304.
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
PLACE = "{assets}"
"""In the page, for the address of its files."""
DEPTH_MAX = 4
FOR_GOOD = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
REFUSED = ("q=0", "q=0.0", "q=0.00", "q=0.000")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing from elsewhere, nothing inline, and no text becomes markup: the browser refuses it, whoever tries."""


class Asset(Struct, frozen=True):
    body: bytes
    packed: bytes
    """The same, by gzip: done once, and a third of the bytes."""
    media_type: str
    etag: str


class Assets:
    """The files of the dashboard, as the service found them when it started."""

    def __init__(self, root: Traversable) -> None:
        found = dict(sorted(read(root)))
        self.version = hash_of(b"".join(f"{name}\0".encode() + body for name, body in found.items()))
        page = found.pop(PAGE).replace(PLACE.encode(), f"/assets/{self.version}".encode())
        self.page = asset_of(PAGE, page)
        self._by_name = {name: asset_of(name, body) for name, body in found.items()}

    def get(self, version: str, name: str) -> Asset | None:
        return self._by_name.get(name) if version == self.version else None

    @property
    def names(self) -> list[str]:
        return list(self._by_name)


def read(folder: Traversable, prefix: str = "", depth: int = 0) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir() and depth < DEPTH_MAX:
            found += read(entry, f"{prefix}{entry.name}/", depth + 1)
        elif suffix_of(entry.name) in MEDIA_TYPES:
            found.append((f"{prefix}{entry.name}", entry.read_bytes()))
    return found


def suffix_of(name: str) -> str:
    return name.rpartition(".")[2]


def hash_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def asset_of(name: str, body: bytes) -> Asset:
    return Asset(body, gzip.compress(body, mtime=0), MEDIA_TYPES[suffix_of(name)], f'W/"{hash_of(body)}"')


ASSETS = Assets(files("leaseway") / "dashboard" / "static")


@routes.get("/", OPEN, include_in_schema=False)
async def page(request: Request) -> Response:
    return answer(request, ASSETS.page, ASK_AGAIN)


@routes.get("/assets/{version}/{name:path}", OPEN, include_in_schema=False)
async def asset(request: Request, version: str, name: str) -> Response:
    found = ASSETS.get(version, name)
    if found is None:
        raise Problem(404, "not_found", "there is no such file; the service may have been renewed: load the page again")
    return answer(request, found, FOR_GOOD)


def answer(request: Request, found: Asset, keeping: str) -> Response:
    headers = {"ETag": found.etag, "Cache-Control": keeping, "Content-Security-Policy": CSP, "Vary": "Accept-Encoding"}
    if is_known(request.headers.get("if-none-match", ""), found.etag):
        return Response(status_code=304, headers=headers)
    if not takes_gzip(request.headers.get("accept-encoding", "")):
        return Response(found.body, media_type=found.media_type, headers=headers)
    return Response(found.packed, media_type=found.media_type, headers={**headers, "Content-Encoding": "gzip"})


def is_known(given: str, etag: str) -> bool:
    """Tags are weak, since a packed body is the same page; some send them back without saying so."""
    return any(tag.strip() in ("*", etag, etag.removeprefix("W/")) for tag in given.split(","))


def takes_gzip(given: str) -> bool:
    """`gzip;q=0` is a refusal."""
    wanted = (part.partition(";") for part in given.lower().split(","))
    return any(name.strip() == "gzip" and quality.replace(" ", "") not in REFUSED for name, _, quality in wanted)
