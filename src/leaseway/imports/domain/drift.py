"""Profiles of documents: which paths they have, with which types. Two runs with different profiles have drifted.

A profile comes from a sample, and a rare path can be missing from a sample by chance. Only differences that chance does
not explain are reported.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from leaseway.imports.domain.page import Record
from leaseway.imports.domain.run_state import Profile

CHANCE_MAX = 0.001
"""The largest probability that a sample missed by chance what the other sample contains."""
BELOW_TOP = frozenset(".[")


class TypeChange(Struct, frozen=True):
    path: str
    before: tuple[str, ...]
    after: tuple[str, ...]


class Drift(Struct, frozen=True):
    """Paths, sorted."""

    new: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    changed: tuple[TypeChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.vanished or self.changed)


def merge_profiles(profiles: Iterable[Profile]) -> dict[str, dict[str, int]]:
    """The profiles of all shards, added."""
    total: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for profile in profiles:
        for path, types in profile.items():
            total[path].update(types)
    return {path: dict(types) for path, types in total.items()}


def compare_profiles(before: Profile, after: Profile) -> Drift | None:
    """Returns None if one of the profiles is empty."""
    if not before or not after:
        return None
    was, is_ = sample_size(before), sample_size(after)
    new = [path for path in after if path not in before and is_significant(count_types(after[path]), is_, was)]
    vanished = [path for path in before if path not in after and is_significant(count_types(before[path]), was, is_)]
    both = sorted(path for path in before if path in after)
    changed = [
        TypeChange(path, tuple(sorted(before[path])), tuple(sorted(after[path])))
        for path in both
        if types_differ(before[path], after[path])
    ]
    return Drift(tuple(sorted(new)), tuple(sorted(vanished)), tuple(changed))


def types_differ(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Compared among the documents that have the path, so a path that became rarer keeps its types."""
    was, is_ = count_types(before), count_types(after)
    return any(is_significant(count, is_, was) for type_, count in after.items() if type_ not in before) or any(
        is_significant(count, was, is_) for type_, count in before.items() if type_ not in after
    )


def is_significant(count: int, of: int, other: int) -> bool:
    """Whether a sample of `other` documents would contain what was seen `count` times in a sample of `of`."""
    share = min(count / of, 1.0) if of else 0.0
    return bool((1.0 - share) ** other <= CHANCE_MAX)


def sample_size(profile: Profile) -> int:
    """The number of sampled documents. Paths inside lists are counted more often than once per document."""
    top = [count_types(types) for path, types in profile.items() if not BELOW_TOP & set(path.removeprefix("$."))]
    return max(top or [count_types(types) for types in profile.values()], default=0)


def count_types(types: Mapping[str, int]) -> int:
    return sum(types.values())


SAMPLE_MAX = 20
"""Documents sampled from one page, evenly spread."""
PATHS_MAX = 300
DEPTH_MAX = 6
ITEMS_MAX = 3
"""Items of a list that are sampled."""


def profile_documents(records: Sequence[Record]) -> Profile:
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    step = max(len(records) // SAMPLE_MAX, 1)
    for record in records[::step][:SAMPLE_MAX]:
        for path, kind in dict.fromkeys(walk_paths(record, "", 0)):  # in the same order in every process
            if path in counts or len(counts) < PATHS_MAX:
                counts[path][kind] += 1
    return {path: dict(kinds) for path, kinds in counts.items()}


def walk_paths(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    kind = json_type(value)
    if path:
        yield path, kind
    if depth >= DEPTH_MAX or kind in SCALARS:
        return
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from walk_paths(below, f"{path}.{name}" if path else str(name), depth + 1)
    elif isinstance(value, list):
        for item in value[:ITEMS_MAX]:
            yield from walk_paths(item, f"{path}[*]", depth + 1)


JSON_TYPES = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "text", list: "list", dict: "object"
}  # fmt: skip
SCALARS = {"null", "boolean", "integer", "number", "text"}


def json_type(value: Any) -> str:
    """The type of a subclass is that of its base."""
    kind = JSON_TYPES.get(type(value))
    return kind or next((JSON_TYPES[base] for base in type(value).__mro__ if base in JSON_TYPES), "object")


def add_profiles(one: Profile, other: Profile) -> Profile:
    """The sum of both profiles."""
    together = {path: dict(kinds) for path, kinds in one.items()}
    for path, kinds in other.items():
        if path not in together and len(together) >= PATHS_MAX:
            continue
        known = together.setdefault(path, {})
        for kind, count in kinds.items():
            known[kind] = known.get(kind, 0) + count
    return together
