"""References to texts that are too large for a row: the text is in a blob store, and the job has a reference to it.

    {"$blob":"payload-6f0c…","bytes":5000000,"sha256":"9b1e…"}

A reference names a blob of its own job only: the path consists of the job's id and the name. So a job with a forged
reference can reach nothing of another job or another tenant.
"""

import hashlib
import re
from typing import NamedTuple

import msgspec
from msgspec import Struct

from leaseway.domain.errors import BadValue, BlobDamaged
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.validators import BLOB_PREFIX

BLOB_BYTES_MAX = 64 * 1024 * 1024
BLOB_FIELDS = ("payload", "cursor", "result")
NAME = re.compile(r"(?:payload|cursor|result)-[0-9a-zA-Z_-]{16,80}")
PATH = re.compile(rf"[0-9A-Za-z_-]{{2}}/([0-9A-Za-z_-]{{1,64}})\.({NAME.pattern})")
JOB = re.compile(r"[0-9A-Za-z_-]{1,64}")


class BlobReference(Struct, frozen=True, forbid_unknown_fields=True):
    name: str = msgspec.field(name="$blob")
    bytes: int
    sha256: str


class StoredBlob(NamedTuple):
    path: str
    bytes: int
    modified_at: Instant
    """By the clock of the blob store."""


_references = msgspec.json.Decoder(BlobReference)


def is_reference(text: str | None) -> bool:
    return text is not None and text.startswith(BLOB_PREFIX)


def write_reference(name: str, data: bytes) -> str:
    reference = BlobReference(name, len(data), hashlib.sha256(data).hexdigest())
    return msgspec.json.encode(reference).decode()


def read_reference(text: str, field: str) -> BlobReference:
    try:
        reference = _references.decode(text)
    except msgspec.DecodeError as error:
        raise BlobDamaged(f"{field}: looks like a reference to a blob, but cannot be read: {error}") from error
    if NAME.fullmatch(reference.name) is None or not reference.name.startswith(f"{field}-"):
        raise BlobDamaged(f"{field}: the reference names {reference.name!r}, which is not a blob of this field")
    if not 0 <= reference.bytes <= BLOB_BYTES_MAX:
        raise BlobDamaged(f"{field}: the reference names {reference.bytes:,} bytes; {BLOB_BYTES_MAX:,} are the most")
    return reference


def check_content(reference: BlobReference, data: bytes) -> str:
    """The text of a blob. Refuses a blob that is not what was written."""
    if len(data) != reference.bytes or hashlib.sha256(data).hexdigest() != reference.sha256:
        raise BlobDamaged(f"blob {reference.name}: its content is not what was written; restore it from a backup")
    return data.decode()


def blob_path(job: JobId, name: str) -> str:
    """The two last characters of an id are random, so that no folder gets all files."""
    if JOB.fullmatch(job) is None:
        raise BadValue("id", f"{job!r} cannot have blobs: only letters, digits, dashes and underscores, at most 64")
    return f"{job[-2:]:_>2}/{job}.{name}"


def parse_path(path: str) -> tuple[JobId, str] | None:
    """Job and name of a blob. None: the path is not that of a blob."""
    found = PATH.fullmatch(path)
    return None if found is None else (JobId(found[1]), found[2])


def referenced_names(*texts: str | None) -> set[str]:
    """The names of the blobs that these texts refer to. A damaged reference protects nothing."""
    return {name for name in map(_name, texts) if name is not None}


def _name(text: str | None) -> str | None:
    if text is None or not is_reference(text):
        return None
    try:
        return _references.decode(text).name
    except msgspec.DecodeError:
        return None
