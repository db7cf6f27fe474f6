"""Every ledger must pass the contract suite that ships with the package."""

from collections import Counter
from importlib import import_module
from pkgutil import iter_modules

import leaseway.testing.ledger_contract
from leaseway.testing.ledger_contract import *  # noqa: F403


def test_no_promise_of_a_ledger_hides_another() -> None:
    """Of two tests with the same name only the last would run, and a chapter that is not imported would not run
    at all.
    """
    package = leaseway.testing.ledger_contract
    modules = [import_module(f"{package.__name__}.{found.name}") for found in iter_modules(package.__path__)]
    written = Counter(
        name
        for module in modules
        for name, thing in vars(module).items()
        if name.startswith("test_") and thing.__module__ == module.__name__
    )
    assert [name for name, times in written.items() if times > 1] == []
    assert [name for name in written if name not in globals()] == []
