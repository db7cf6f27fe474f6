"""Which process runs which test, and in which order: whoever is last should not be the one with most to do."""

import pytest
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

TOGETHER = (
    "tests/dashboard/",  # a browser, too big to start three times
    "tests/chaos/",  # fleets of processes, that would be in each other's way
    "tests/imports/test_mongodb_sink.py",  # two servers
    "tests/imports/test_mongodb_failures.py",
    "tests/imports/test_later_sinks_killed.py",
    "tests/simulation/test_campaign.py",  # worlds, each of which is told once and asked about several times
    "tests/simulation/test_imports.py",
    "tests/simulation/test_metered.py",
)
"""Tests that share something dear run in one process, one after the other."""
LONG = ("tests/test_docs.py", "tests/stores/test_state_machine.py", "tests/budgets/test_state_machine.py")
"""As `slow`, though they are part of ./dev check."""


class Scheduling(LoadGroupScheduling):  # type: ignore[misc]
    """By path, because pytest 9.2 does not carry the marks of groups to where they are read (pytest-xdist #1386).
    Groups come first, and after them one test after the other to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return next((path for path in TOGETHER if nodeid.startswith(path)), None) or super()._split_scope(nodeid)


def long_ones_first(items: list[pytest.Item]) -> None:
    """A long test that comes last is waited for by everybody; so the short ones come last, in the order they had."""
    items.sort(key=lambda item: not is_long(item))


def is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None or item.nodeid.startswith(LONG)
