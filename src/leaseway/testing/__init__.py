"""For your own tests.

context                      a context for jobs that are called as functions; it records what they do
virtual_clock                an app whose workers run in virtual time
clock                        a clock that you move
provider                     a metered API on loopback
postgres, valkey, mongodb    temporary servers
…_contract                   the contract suites that every store, limiter, ledger and sink must pass
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leaseway.testing.clock import FakeClock
    from leaseway.testing.context import FakeContext, FakeSyncContext
    from leaseway.testing.recorded_call import RecordedCall
    from leaseway.testing.virtual_clock import VirtualTime, virtual_time

__all__ = [
    "FakeClock",
    "FakeContext",
    "FakeSyncContext",
    "RecordedCall",
    "VirtualTime",
    "virtual_time",
]

_HOME = {
    "FakeClock": "clock",
    "FakeContext": "context",
    "FakeSyncContext": "context",
    "RecordedCall": "recorded_call",
    "VirtualTime": "virtual_clock",
    "virtual_time": "virtual_clock",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a name at its first use: the contract suites need neither an app nor a worker."""
        if name not in _HOME:
            raise AttributeError(f"module 'leaseway.testing' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"leaseway.testing.{_HOME[name]}"), name)
        return value
