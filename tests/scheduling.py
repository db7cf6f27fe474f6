"""Decides which pytest-xdist process runs which test, and in which order, so that all processes finish together."""

import pytest
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

GROUPS = (
    "tests/dashboard/",  # one browser, which takes long to start
    "tests/chaos/",  # many processes each; two at once would disturb each other
    "tests/imports/test_mongodb_contract.py",  # two servers
    "tests/imports/test_mongodb_failures.py",
    "tests/imports/test_document_sink_kills.py",
    "tests/sdks/",  # the SDKs, whose import takes seconds
    "tests/house/",  # parses every module once
    "tests/simulation/test_campaign.py",  # simulations that run once and are checked by several tests
    "tests/simulation/test_imports.py",
    "tests/simulation/test_metered.py",
)
"""Files or folders whose tests share something expensive and therefore run in one process, one after the other."""
LONG = ("tests/docs/test_documents.py", "tests/stores/test_state_machine.py", "tests/budgets/test_state_machine.py")
"""Tests that take long although they are not marked `slow`, because ./dev check includes them."""


class GroupsFirstScheduling(LoadGroupScheduling):  # type: ignore[misc]
    """Starts with the groups, then gives one test at a time to the next free process.

    Groups are recognized by path because pytest 9.2 does not pass on the group marks (pytest-xdist #1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((path for path in GROUPS if nodeid.startswith(path)), None) or super()._split_scope(nodeid)


def put_slow_tests_first(items: list[pytest.Item]) -> None:
    """If a long test started last, all other processes would wait for it. The sort keeps the order otherwise."""
    items.sort(key=lambda item: not is_long(item))


def is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None or item.nodeid.startswith(LONG)
