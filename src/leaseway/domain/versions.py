"""The version of a store's schema."""

from typing import NamedTuple


class Versions(NamedTuple):
    present: int
    """0: there is none yet."""
    newest: int
    """The one that this leaseway brings along."""

    @property
    def is_due(self) -> bool:
        return self.present < self.newest
