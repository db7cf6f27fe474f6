"""Fields that change though a record does not: they are left out before its content is hashed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from leaseway.domain.imports.jsonpath import EVERY, Path
from leaseway.domain.imports.page import Record

Tree = dict[Any, Any]
"""Steps, and what to leave out below them; empty: all of it."""


def stable_of(volatile: Sequence[Path]) -> Callable[[Record], Any]:
    """What is left of a record for its hash. Fields of the record itself, as most are, cost little."""
    if not volatile:
        return lambda record: record
    tree = tree_of(volatile)
    if EVERY in tree or any(tree.values()):
        return lambda record: without(record, tree)
    names = list(tree)

    def without_names(record: Record) -> Any:
        copy = dict(record)
        for name in names:
            copy.pop(name, None)
        return copy

    return without_names


def tree_of(paths: Iterable[Path]) -> Tree:
    tree: Tree = {}
    for path in paths:
        level, is_covered = tree, False
        for step in path.steps[:-1]:
            if level.get(step) == {}:
                is_covered = True
                break
            level = level.setdefault(step, {})
        if path.steps and not is_covered:
            level[path.steps[-1]] = {}
    return tree


def without(value: Any, tree: Tree) -> Any:
    """A copy without those fields; what they do not touch is shared."""
    if isinstance(value, Mapping):
        steps: Iterable[Any] = list(value) if EVERY in tree else [step for step in tree if step in value]
        copy: Any = dict(value)
    elif isinstance(value, list):
        steps = range(len(value)) if EVERY in tree else [step for step in tree if is_place(step, value)]
        copy = list(value)
    else:
        return value
    for step in steps:
        below = tree.get(step, tree.get(EVERY))
        if below:
            copy[step] = without(copy[step], below)
        elif isinstance(copy, dict):
            del copy[step]
        else:
            copy[step] = None
    return copy


def is_place(step: Any, value: list[Any]) -> bool:
    return isinstance(step, int) and step < len(value)
