"""What a job needs before it may start: limits of a provider, and budgets.

They are a part of its lane's name: jobs with the same needs wait together, and what stops one stops them all.
"""

import msgspec
from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.limits.limit import Ask

NEEDS_BYTES_MAX = 1_000
"""They are a part of a key in every store."""


class Charge(Struct, frozen=True, order=True):
    """A budget, and by which definition it is kept."""

    name: str
    budget: str


class Needs(Struct, frozen=True):
    """In the order of their names, so that the same needs are the same text."""

    limits: tuple[Ask, ...] = ()
    budgets: tuple[Charge, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.limits or self.budgets)


NO_NEEDS = Needs()


def text_of(needs: Needs) -> str:
    """As lanes keep it. Empty: nothing is needed."""
    if not needs:
        return ""
    ordered = Needs(tuple(sorted(needs.limits)), tuple(sorted(needs.budgets)))
    text = msgspec.json.encode(ordered)
    if len(text) > NEEDS_BYTES_MAX:
        names = ", ".join([ask.name for ask in ordered.limits] + [charge.name for charge in ordered.budgets])
        raise BadValue("limits", f"have too many or too long names for one job ({len(text):,} bytes): {names[:200]}")
    return text.decode()


def needs_of(text: str) -> Needs:
    return msgspec.json.decode(text, type=Needs) if text else NO_NEEDS
