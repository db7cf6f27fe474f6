"""Collects the histories: by the rule that must notice, or as sound."""

from collections.abc import Callable

from tests.chaos.story import Story

Tale = Callable[[Story], None]
BROKEN: list[tuple[str, Tale]] = []
SOUND: list[Tale] = []


def breaks(rule: str) -> Callable[[Tale], Tale]:
    def register(tale: Tale) -> Tale:
        BROKEN.append((rule, tale))
        return tale

    return register


def sound(tale: Tale) -> Tale:
    """The history is correct and only looks odd."""
    SOUND.append(tale)
    return tale
