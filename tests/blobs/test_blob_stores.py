"""Every blob store must pass the contract suite that ships with the package."""

import os
import stat
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.blobs.s3_server import s3_server

from leaseway.domain.errors import StoreRefused
from leaseway.ports.blob_store import BlobStore
from leaseway.stores.blobs.files import TEMPORARY, FileBlobs
from leaseway.stores.blobs.s3 import S3Blobs, S3Settings, parse_settings, sign
from leaseway.system import store_time_us
from leaseway.testing.blob_store_contract import *  # noqa: F403
from leaseway.testing.blob_store_contract import content, path_of, paths

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret"}
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def s3(endpoint: str, request: pytest.FixtureRequest) -> S3Settings:
    """A prefix of its own for each test."""
    number = str(abs(hash(request.node.nodeid)))
    return parse_settings(f"s3://bucket/{number}", {**KEYS, "AWS_ENDPOINT_URL_S3": endpoint})


@pytest.fixture(params=["files", "s3"])
async def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BlobStore]:
    made: BlobStore
    if request.param == "files":
        made = FileBlobs(str(tmp_path / "blobs"), store_time_us)
    else:
        made = S3Blobs(request.getfixturevalue("s3"), store_time_us)
    yield made
    await made.close()


async def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    """Other users of a machine must not read arguments."""
    await FileBlobs(str(tmp_path / "blobs"), store_time_us).put(path_of(1), b"x")
    file = tmp_path / "blobs" / path_of(1)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (file, file.parent)] == [0o600, 0o700]


async def test_what_a_killed_writer_left_is_neither_listed_nor_kept(tmp_path: Path) -> None:
    """A process can be killed at any moment of a write. Half a blob must never be read, and not stay for ever."""
    blobs = FileBlobs(str(tmp_path), store_time_us)
    await blobs.put(path_of(1), b"x")
    left = tmp_path / TEMPORARY / "half"
    left.write_bytes(b"ha")
    assert await paths(blobs) == [path_of(1)]
    assert left.exists()
    os.utime(left, (0, 0))
    assert await paths(blobs) == [path_of(1)]
    assert not left.exists()


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The operator must learn which path to mend, and no submission may seem to succeed."""
    (tmp_path / "blobs").write_text("a file")
    with pytest.raises(StoreRefused, match="blobs"):
        await FileBlobs(str(tmp_path / "blobs"), store_time_us).put(path_of(1), b"x")


async def test_objects_of_others_are_passed_over_in_a_bucket(s3: S3Settings) -> None:
    """A prefix may hold other objects. They are never deleted, and a page full of them does not end a list."""
    blobs = S3Blobs(s3, store_time_us)
    await blobs.put(path_of(1), b"x")
    for number in range(3):
        async with blobs._request("PUT", f"{s3.prefix}00/foreign-{number}", data=b"x"):
            pass
    assert await paths(blobs, limit=2) == [path_of(1)]
    await blobs.close()


async def test_a_missing_bucket_is_not_a_missing_blob(s3: S3Settings) -> None:
    """A job whose blob is missing fails for good; a wrong setting must not do that to every job."""
    blobs = S3Blobs(s3._replace(bucket="nothing-here"), store_time_us)
    with pytest.raises(StoreRefused, match="nothing-here"):
        await content(blobs, path_of(1))
    await blobs.close()


@pytest.mark.parametrize("token", ["", "session"])
def test_requests_are_signed_as_by_amazons_own_client(token: str) -> None:
    """The server of the tests does not check signatures. A real one refuses every request with a wrong one."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    settings = parse_settings("s3://b/a b", {**KEYS, "AWS_REGION": "eu-west-1", "AWS_SESSION_TOKEN": token})
    query = {"list-type": "2", "prefix": "a b/ü~+", "start-after": "x/y"}
    address, headers = sign(settings, "GET", "", query, b"", NOW)
    signed = headers.pop("authorization")
    theirs = S3SigV4Auth(Credentials(settings.key_id, settings.secret, token or None), "s3", "eu-west-1")
    request = AWSRequest("GET", address, headers=headers)
    request.context["timestamp"] = headers["x-amz-date"]
    text = theirs.string_to_sign(request, theirs.canonical_request(request))
    assert signed.endswith(f"Signature={theirs.signature(text, request)}")


@pytest.mark.parametrize(
    ("url", "environment", "problem"),
    [
        ("s3:///prefix", KEYS, "s3://bucket/prefix"),
        ("s3://key:secret@bucket", KEYS, "in the environment"),
        ("s3://bucket", {"AWS_ACCESS_KEY_ID": "x"}, "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_a_wrong_address_says_what_to_write(url: str, environment: dict[str, str], problem: str) -> None:
    """A credential in a URL would be printed in logs and errors."""
    with pytest.raises(StoreRefused, match=problem):
        parse_settings(url, environment)
