"""A shard: the part of a source that one predicate describes.

A shard's key is derived from its predicate alone, so the same plan always has the same shards and an interrupted run
finds its place.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

Predicate = Mapping[str, Any]
"""The condition that every record of a shard meets, by filter name: {"id": [0, 20000]}, {"country": ["ES"]}, {"window":
["2026-04-01T00:00Z", "2026-05-01T00:00Z"]}, {"box": [40.0, -4.0, 41.0, -3.0]}. Ranges are half-open; None is an open
end.
"""

Cursor = Mapping[str, Any]
"""Which page comes next, in the source's terms: {"after": 311592}, {"offset": 2000}, {"next": "https://…"}."""


class Shard(Struct, frozen=True):
    key: str
    label: str
    predicate: Predicate
    estimated_rows: int | None = None
    depth: int = 0
    """How many splits led to this shard."""


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces. Equal values have equal texts."""
    return msgspec.json.encode(value, order="deterministic").decode()


def make_shard(
    source: str, label: str, predicate: Predicate, estimated_rows: int | None = None, depth: int = 0
) -> Shard:
    digest = hashlib.sha256(canonical(predicate).encode()).hexdigest()[:12]
    return Shard(f"{source}/{label}/{digest}", label, predicate, estimated_rows, depth)
