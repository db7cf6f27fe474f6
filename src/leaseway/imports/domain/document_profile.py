"""What documents look like: which paths they have, of which types. Two runs with different profiles have drifted."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leaseway.imports.domain.page import Record
from leaseway.imports.domain.run_state import Profile

SAMPLE_MAX = 20
"""Documents of one page that are looked at, evenly spread."""
PATHS_MAX = 300
DEPTH_MAX = 6
ITEMS_MAX = 3
"""Of a list."""


def profile_documents(records: Sequence[Record]) -> Profile:
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    step = max(len(records) // SAMPLE_MAX, 1)
    for record in records[::step][:SAMPLE_MAX]:
        for path, kind in set(walk_paths(record, "", 0)):
            if path in counts or len(counts) < PATHS_MAX:
                counts[path][kind] += 1
    return {path: dict(kinds) for path, kinds in counts.items()}


def walk_paths(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if path:
        yield path, json_type(value)
    if depth >= DEPTH_MAX:
        return
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from walk_paths(below, f"{path}.{name}" if path else str(name), depth + 1)
    elif isinstance(value, list):
        for item in value[:ITEMS_MAX]:
            yield from walk_paths(item, f"{path}[*]", depth + 1)


def json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "text"
        case list():
            return "list"
        case _:
            return "object"


def add_profiles(one: Profile, other: Profile) -> Profile:
    """Both together."""
    together = {path: dict(kinds) for path, kinds in one.items()}
    for path, kinds in other.items():
        if path not in together and len(together) >= PATHS_MAX:
            continue
        known = together.setdefault(path, {})
        for kind, count in kinds.items():
            known[kind] = known.get(kind, 0) + count
    return together
