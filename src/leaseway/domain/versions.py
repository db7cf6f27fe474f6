"""The version of a store's schema, and of a definition that people may change at the same time."""

from typing import NamedTuple

from leaseway.domain.errors import Stale


class Versions(NamedTuple):
    present: int
    """0: there is none yet."""
    newest: int
    """The one that this leaseway brings along."""

    @property
    def is_due(self) -> bool:
        return self.present < self.newest


def refuse_stale(what: str, present: int, expected: int | None) -> None:
    """Asked where nobody can come between the look and the change. `expected`: 0 if there must be none; None: any."""
    if expected is not None and present != expected:
        raise Stale(stale_text(what, present, expected))


def stale_text(what: str, present: int, expected: int) -> str:
    if not present:
        return f"{what} is not there any more"
    if not expected:
        return f"{what} is there already, at version {present}; look at it first"
    return f"{what} is at version {present}, not at {expected}; look at it again"
