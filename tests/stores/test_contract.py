"""Every store must pass the contract suite that ships with the package."""

from collections import Counter
from importlib import import_module
from pkgutil import walk_packages

import leaseway.testing
from leaseway.testing.job_store_contract import *  # noqa: F403
from leaseway.testing.reads_contract import *  # noqa: F403
from leaseway.testing.schedule_contract import *  # noqa: F403


def test_no_promise_hides_another() -> None:
    """Of two tests with the same name only the last would run, and a chapter that is not imported would not run
    at all.
    """
    found = [found.name for found in walk_packages(leaseway.testing.__path__, "leaseway.testing.")]
    # These suites have test modules of their own.
    kept_apart = (
        "limiter",
        "ledger",
        "sink",
        "key_store",
        "inspection",
        "pauses",
        "workers",
        "pools",
        "history",
        "blob_store",
    )
    elsewhere = [f"{each}_contract" for each in kept_apart]
    modules = [import_module(name) for name in found if not any(each in name for each in elsewhere)]
    written = Counter(
        name
        for module in modules
        for name, thing in vars(module).items()
        if name.startswith("test_") and thing.__module__ == module.__name__
    )
    assert [name for name, times in written.items() if times > 1] == []
    assert [name for name in written if name not in globals()] == []
