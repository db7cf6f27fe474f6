"""What the jobs of a lane need, in words."""

import msgspec

from leaseway.domain.limits.limit import Ask
from leaseway.domain.requirements import needs_of


def needs_in_words(text: str) -> str:
    """Limits with what a job costs, then budgets. What cannot be read is shown as it is."""
    try:
        needs = needs_of(text)
    except msgspec.DecodeError:
        return text
    return ", ".join([*map(_ask_in_words, needs.limits), *(f"budget {charge.name}" for charge in needs.budgets)])


def _ask_in_words(ask: Ask) -> str:
    return ask.name if ask.cost == 1 else f"{ask.cost:,} of {ask.name}"
