"""Decides which pytest-xdist process runs which test, and in which order, so that all processes finish together."""

from collections import OrderedDict

import pytest
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

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


PROCESSES_FOR_LONG_TESTS = 4


class GroupsFirstScheduling(LoadGroupScheduling):  # type: ignore[misc]
    """Starts with the groups, then gives one test at a time to the next free process.

    Long tests come first, and they wait more than they compute. A fifth process takes short tests meanwhile: those of
    the last file in the queue, then those of the file before it. So the tests of a file keep their order.

    Groups are recognized by path because pytest 9.2 does not pass on the group marks (pytest-xdist #1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((path for path in GROUPS if nodeid.startswith(path)), None) or super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node in self.nodes[PROCESSES_FOR_LONG_TESTS:]:
            self.workqueue.move_to_end(first_of_last_file(self.workqueue), last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget units of work that are complete: pytest-xdist looks through all of them after each test."""
        super().mark_test_complete(node, item_index, duration)
        work = self.assigned_work[node]
        for scope in [scope for scope, tests in work.items() if all(tests.values())]:
            del work[scope]


def first_of_last_file(queue: OrderedDict[str, object]) -> str:
    scopes = reversed(queue)
    first = next(scopes)
    file, _, _ = first.partition("::")
    for scope in scopes:
        if not scope.startswith(f"{file}::"):
            break
        first = scope
    return first


def put_slow_tests_first(items: list[pytest.Item]) -> None:
    """If a long test started last, all other processes would wait for it. The sort keeps the order otherwise."""
    items.sort(key=lambda item: not is_long(item))


def is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None or item.nodeid.startswith(LONG)
