"""Every limiter must pass the contract suite that ships with the package."""

from collections import Counter
from importlib import import_module
from pkgutil import iter_modules

from leaseway.testing import limiter_contract
from leaseway.testing.limiter_contract import *  # noqa: F403


def test_no_promise_of_a_limiter_hides_another() -> None:
    """Of two tests with the same name only the last would run, and a chapter that is not imported would not run
    at all.
    """
    chapters = [
        import_module(f"{limiter_contract.__name__}.{found.name}") for found in iter_modules(limiter_contract.__path__)
    ]
    written = Counter(name for chapter in chapters for name in vars(chapter) if name.startswith("test_"))
    assert len(written) > 50
    assert [name for name, times in written.items() if times > 1] == []
    assert [name for name in written if name not in globals()] == []
