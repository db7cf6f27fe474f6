"""A bucket that answers something else than S3 does: a proxy, a wrong endpoint, or a server that was taken over."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from leaseway import App
from leaseway.domain.errors import LeasewayError, StoreRefused, TransientError
from leaseway.domain.ids import SECOND_US
from leaseway.stores.blobs.s3 import S3Blobs, parse_settings
from leaseway.testing.blob_store_contract import path_of
from leaseway.worker import maintenance
from leaseway.worker.blobs import JobBlobs

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret"}
ENTRY = "<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>{at}</LastModified></Contents>"
VALID = {"key": path_of(1), "size": "1", "at": "2020-01-01T00:00:00Z"}


def listing(*entries: str) -> str:
    return f"<ListBucketResult>{''.join(entries)}</ListBucketResult>"


LISTS = {
    "a page of a proxy": "<html><body>Please log in<br></body></html>",
    "nothing": "",
    "an entry without a key": listing("<Contents><Size>1</Size></Contents>"),
    "a size that is no number": listing(ENTRY.format(**VALID | {"size": "many"})),
    "a time that is no time": listing(ENTRY.format(**VALID | {"at": "yesterday"})),
    "entities that grow": '<!DOCTYPE a [<!ENTITY b "' + "x" * 9_000 + '">]><a>' + "&b;" * 9_000 + "</a>",
    "the same page again and again": listing(*[ENTRY.format(**VALID | {"key": "other"})] * 500),
}


class HostileServer:
    """Answers every request in the same way."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, "", dict[str, str]()
        self.requests = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        await request.read()
        return web.Response(status=self.status, text=self.body, headers=self.headers)


@pytest.fixture
async def hostile() -> AsyncIterator[tuple[HostileServer, S3Blobs]]:
    server, app = HostileServer(), web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address: Any = runner.addresses[0]
    settings = parse_settings("s3://bucket", {**KEYS, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{address[1]}"})
    blobs = S3Blobs(settings, lambda: 1_700_000_000 * SECOND_US)
    yield server, blobs
    await blobs.close()
    await runner.cleanup()


@pytest.mark.parametrize("name", LISTS)
async def test_a_list_that_cannot_be_read_is_an_error_that_passes(
    hostile: tuple[HostileServer, S3Blobs], name: str
) -> None:
    """Any other error would end the worker that looks for orphans, and a list without an end would keep it busy."""
    server, blobs = hostile
    server.body = LISTS[name]
    with pytest.raises(TransientError, match="bucket"):
        await blobs.page("", 500)
    assert server.requests <= 3


@pytest.mark.parametrize("status", [200, 301, 403, 404, 500])
async def test_a_bucket_that_cannot_be_listed_ends_no_worker(
    hostile: tuple[HostileServer, S3Blobs], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A key that may read and write objects need not be allowed to list them."""
    server, blobs = hostile
    server.status, server.body = status, "<Error><Code>AccessDenied</Code></Error>" if status > 200 else "<a"
    monkeypatch.setattr(maintenance, "SWEEP_SHARE", 1.0)
    async with App("memory://") as app:
        await app.store()
        await maintenance.prune_jobs(app.world._replace(blobs=JobBlobs(blobs)), 0)
    assert server.requests


async def test_a_redirect_is_not_followed(hostile: tuple[HostileServer, S3Blobs]) -> None:
    """The arguments of jobs would be sent to whatever server it names."""
    server, blobs = hostile
    server.status, server.headers = 307, {"Location": "/elsewhere"}
    with pytest.raises(StoreRefused, match="307"):
        await blobs.put(path_of(1), b"secret")
    assert server.requests == 1


async def test_the_code_of_an_error_is_one_short_line(hostile: tuple[HostileServer, S3Blobs]) -> None:
    """It becomes part of a job's error, which operators see in a terminal."""
    server, blobs = hostile
    server.status, server.body = 500, f"<Error><Code>{'x' * 99_000}\n\u202e</Code></Error>"
    with pytest.raises(LeasewayError) as raised:
        await blobs.put(path_of(1), b"x")
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 300
