"""Blobs in a bucket that speaks the protocol of S3: AWS, MinIO, Ceph, Garage, Cloudflare R2 and others.

Four requests are all that is needed: PUT, GET, DELETE and the list of a prefix. They are signed here (AWS Signature
Version 4) and sent by aiohttp, which `ctx.http` needs as well; boto3 would block.
"""

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

import aiohttp
from yarl import URL

from leaseway.domain.blob import StoredBlob, parse_path
from leaseway.domain.errors import BlobMissing, StoreRefused, TransientError
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.validators import printable

PART_BYTES = 256 * 1024
REPLY_BYTES_MAX = 4 * 1024 * 1024
SECONDS_MAX = 60.0
LIST_MAX = 1_000
DELETES_AT_ONCE = 8
NEEDED = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
NOTHING = hashlib.sha256(b"").hexdigest()
REFUSALS = (301, 302, 303, 307, 308, 400, 401, 403, 404)
"""A redirect, too: no request goes to another server than the one that was named."""
CODE_LENGTH_MAX = 100


class S3Settings(NamedTuple):
    endpoint: str
    region: str
    key_id: str
    secret: str
    session_token: str
    bucket: str
    prefix: str
    """Empty, or with a slash at its end."""


def parse_settings(url: str, environment: Mapping[str, str]) -> S3Settings:
    """`s3://bucket/prefix`. Credentials, region and endpoint have the names that AWS's own tools use."""
    parts = urlsplit(url)
    if not parts.netloc or "@" in parts.netloc or parts.query:
        raise StoreRefused("blobs: write s3://bucket/prefix; credentials and endpoint are in the environment: AWS_…")
    missing = [name for name in NEEDED if not environment.get(name)]
    if missing:
        raise StoreRefused(f"blobs: s3:// needs {' and '.join(missing)} in the environment")
    region = next((environment[name] for name in REGIONS if environment.get(name)), "us-east-1")
    named = next((environment[name] for name in ENDPOINTS if environment.get(name)), "")
    prefix = parts.path.strip("/")
    return S3Settings(
        endpoint=(named or f"https://s3.{region}.amazonaws.com").rstrip("/"),
        region=region,
        key_id=environment["AWS_ACCESS_KEY_ID"],
        secret=environment["AWS_SECRET_ACCESS_KEY"],
        session_token=environment.get("AWS_SESSION_TOKEN", ""),
        bucket=parts.netloc,
        prefix=f"{prefix}/" if prefix else "",
    )


class S3Blobs:
    def __init__(self, settings: S3Settings, now_us: Callable[[], Instant]) -> None:
        self._settings = settings
        self._now_us = now_us
        self._session: aiohttp.ClientSession | None = None

    async def put(self, path: str, data: bytes) -> None:
        async with self._request("PUT", self._key(path), data=data):
            pass

    async def read(self, path: str) -> AsyncIterator[bytes]:
        async with self._request("GET", self._key(path)) as reply:
            try:
                async for part in reply.content.iter_chunked(PART_BYTES):
                    yield part
            except aiohttp.ClientError as error:
                raise TransientError(
                    f"blob {path}: the reply was cut off ({error}); the call may be repeated"
                ) from error

    async def page(self, after: str, limit: int) -> list[StoredBlob]:
        found: list[StoredBlob] = []
        while True:  # ends: each list starts behind the last one
            entries = await self._list(after, limit)
            found += [each for each in entries if parse_path(each.path) is not None]
            if len(found) >= limit or len(entries) < min(limit, LIST_MAX):
                return found[:limit]
            if entries[-1].path <= after:
                raise TransientError(f"{self._shown} lists objects again that are before {after!r}")
            after = entries[-1].path

    async def _list(self, after: str, limit: int) -> list[StoredBlob]:
        """Also objects that are not blobs."""
        prefix, most = self._settings.prefix, str(min(limit, LIST_MAX))
        query = {"list-type": "2", "max-keys": most, "prefix": prefix, "start-after": prefix + after}
        async with self._request("GET", "", query=query) as reply:
            text = await read_bounded(reply)
        try:
            found = [parse_entry(each) for each in ElementTree.fromstring(text).iter()]
        except (ElementTree.ParseError, KeyError, ValueError, OverflowError) as error:
            detail = f"with a list that cannot be read ({type(error).__name__})"
            raise TransientError(f"{self._shown} answered {detail}; check the endpoint") from error
        return [each._replace(path=each.path.removeprefix(prefix)) for each in found if each is not None]

    async def delete(self, paths: Sequence[str]) -> None:
        slots = asyncio.Semaphore(DELETES_AT_ONCE)

        async def delete_one(path: str) -> None:
            async with slots:
                with contextlib.suppress(BlobMissing):
                    async with self._request("DELETE", self._key(path)):
                        pass

        await asyncio.gather(*map(delete_one, paths))

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _key(self, path: str) -> str:
        if parse_path(path) is None:
            raise BlobMissing(f"{path!r} is not the path of a blob")
        return self._settings.prefix + path

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, key: str, query: Mapping[str, str] | None = None, data: bytes = b""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        now = datetime.fromtimestamp(self._now_us() / SECOND_US, UTC)
        address, headers = sign(self._settings, method, key, query or {}, data, now)
        try:
            async with self._opened().request(
                method,
                URL(address, encoded=True),
                headers=headers,
                data=BytesIO(data) if data else None,
                allow_redirects=False,
            ) as reply:
                await self._check(reply, key)
                yield reply
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TransientError(f"blobs: {self._settings.endpoint} did not answer ({type(error).__name__})") from error

    @property
    def _shown(self) -> str:
        return f"blobs: bucket {self._settings.bucket}"

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
            self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        return self._session

    async def _check(self, reply: aiohttp.ClientResponse, key: str) -> None:
        if reply.status < 300:
            return
        code = error_code(await read_bounded(reply))
        if reply.status == 404 and code != "NoSuchBucket":
            raise BlobMissing(f"blob {key} is not in bucket {self._settings.bucket}")
        what = f"{self._shown} answered {reply.status} {code}"
        if reply.status in REFUSALS and code != "RequestTimeout":
            raise StoreRefused(f"{what}; check its name, the credentials and the endpoint")
        raise TransientError(f"{what}; the call may be repeated")


async def read_bounded(reply: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for part in reply.content.iter_chunked(PART_BYTES):
        data += part
        if len(data) > REPLY_BYTES_MAX:
            raise TransientError(f"blobs: {reply.host} sent a list of more than {REPLY_BYTES_MAX:,} bytes")
    return bytes(data)


def parse_entry(element: Any) -> StoredBlob | None:
    """One blob of a list. Servers differ in the namespace of their replies."""
    if not element.tag.endswith("Contents"):
        return None
    fields = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
    modified = datetime.fromisoformat(fields["LastModified"].replace("Z", "+00:00"))
    return StoredBlob(fields["Key"], int(fields["Size"]), int(modified.timestamp() * SECOND_US))


def error_code(body: bytes) -> str:
    try:
        code = next((each.text or "" for each in ElementTree.fromstring(body).iter() if each.tag.endswith("Code")), "")
        return printable(code[:CODE_LENGTH_MAX])
    except ElementTree.ParseError:
        return ""


# -- AWS Signature Version 4 ------------------------------------------------------------------------------------------


def sign(
    settings: S3Settings, method: str, key: str, query: Mapping[str, str], data: bytes, now: datetime
) -> tuple[str, dict[str, str]]:
    """The address of a request and its signed headers."""
    path = quote(f"/{settings.bucket}/{key}" if key else f"/{settings.bucket}", safe="/~")
    fields = urlencode(sorted(query.items()), quote_via=quote, safe="~")
    digest = hashlib.sha256(data).hexdigest() if data else NOTHING
    at = now.strftime("%Y%m%dT%H%M%SZ")
    host = urlsplit(settings.endpoint).netloc
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": at}
    if settings.session_token:
        headers["x-amz-security-token"] = settings.session_token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join((method, path, fields, lines, names, digest))
    scope = f"{at[:8]}/{settings.region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", at, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    signature = hmac.new(signing_key(settings, at[:8]), text.encode(), hashlib.sha256).hexdigest()
    credential = f"{settings.key_id}/{scope}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return f"{settings.endpoint}{path}{'?' if fields else ''}{fields}", headers


def signing_key(settings: S3Settings, day: str) -> bytes:
    key = f"AWS4{settings.secret}".encode()
    for part in (day, settings.region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
