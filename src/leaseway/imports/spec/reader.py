"""Read a spec: the source, its records, paging and partition, and the sink.

    text of a TOML file ─► tables ─► Spec, or all problems with their fields

A spec contains data and paths, no templates or expressions, so all of it is checked before the first request. It does
not contain secrets, only the names of the environment variables that hold them.
"""

import hashlib
import tomllib
from typing import Any

import msgspec

from leaseway.domain.errors import UsageError
from leaseway.imports.domain.shard import canonical
from leaseway.imports.spec.checks import check_spec
from leaseway.imports.spec.model import PageNumberPaging, Resource, SinkSpec, SourceSpec, Spec
from leaseway.imports.spec.parser import parse_value
from leaseway.imports.spec.source_presets import apply_preset

__all__ = ["BadSpec", "Resource", "SinkSpec", "SourceSpec", "Spec", "read_spec", "spec_hash"]

TEXT_LENGTH_MAX = 1_000_000


class BadSpec(UsageError):
    """An invalid spec, with all problems and their fields."""

    def __init__(self, path: str, problems: list[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{path}: {place}: {problem}" for place, problem in problems))
        self.problems = problems


def read_spec(text: str, path: str) -> Spec:
    """`path` is used in messages only."""
    if len(text) > TEXT_LENGTH_MAX:
        raise BadSpec(path, [("spec", f"must be at most {TEXT_LENGTH_MAX:,} characters (has {len(text):,})")])
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadSpec(path, [("TOML", str(error))]) from error
    problems: list[tuple[str, str]] = []
    spec = parse_value(Spec, apply_preset(data, problems), "", problems)
    if not problems:
        problems.extend(check_spec(spec))
    if problems:
        raise BadSpec(path, problems)
    assert isinstance(spec, Spec)
    return spec


# Fields that may change between start and resume, because they do not change which rows a run produces: pace,
# identification and guards. The URL of the sink may contain a password, and the run is stored there anyway.
UNHASHED = {
    "source": ("limits", "concurrency", "auth", "headers"),
    "resource": ("guards", "on_bad_row", "incremental", "deletes"),
    "sink": ("url",),
}


def spec_hash(spec: Spec) -> str:
    """Equal for specs that produce the same rows. Contains no secrets."""
    data: dict[str, Any] = msgspec.to_builtins(spec)
    del data["budget"]
    for section, fields in UNHASHED.items():
        for field in fields:
            data[section].pop(field, None)
    if not isinstance(spec.resource.page, PageNumberPaging):
        # A page number has another meaning with another page size; other cursors do not.
        data["resource"]["page"].pop("limit", None)
    data["resource"]["page"].pop("limit_min", None)
    return hashlib.sha256(canonical(data).encode()).hexdigest()[:16]
