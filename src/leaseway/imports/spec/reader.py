"""An import as its user writes it down: which source, which records, how they are paged and cut, where rows go.

    text of a TOML file ─► data ─► Spec, or every problem with its place

A spec is data and paths, never a template or an expression: all of it can be checked before the first request.
Secrets are not in it, only the names of the environment variables that hold them.
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
    """A spec that cannot work, with everything that is wrong about it, each with its place."""

    def __init__(self, path: str, problems: list[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{path}: {place}: {problem}" for place, problem in problems))
        self.problems = problems


def read_spec(text: str, path: str) -> Spec:
    """`path` is where the text came from, for messages only."""
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


# What may change between two halves of a run without changing which rows come and what they look like: how fast it
# goes, who we say that we are, and when it gives up. The sink's address may hold a password, and a run lives in it.
UNHASHED = {
    "source": ("limits", "concurrency", "auth", "headers"),
    "resource": ("guards", "on_bad_row", "incremental", "deletes"),
    "sink": ("url",),
}


def spec_hash(spec: Spec) -> str:
    """Equal for specs that bring the same rows. Nothing in it is secret."""
    data: dict[str, Any] = msgspec.to_builtins(spec)
    del data["budget"]
    for section, fields in UNHASHED.items():
        for field in fields:
            data[section].pop(field, None)
    if not isinstance(spec.resource.page, PageNumberPaging):
        # The number of a page means something else with another size; every other cursor does not.
        data["resource"]["page"].pop("limit", None)
    data["resource"]["page"].pop("limit_min", None)
    return hashlib.sha256(canonical(data).encode()).hexdigest()[:16]
