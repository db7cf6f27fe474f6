"""Lists of a store that holds very many jobs: how far one look goes, and where the next one goes on.

Whoever seeks a needle shall not make everybody wait: a look ends after a bounded number of jobs, whether it has found
what it sought or not, and says how far it came. A store may go several ways at once, each from new to old.
"""

from collections.abc import Sequence
from typing import NamedTuple

from leaseway.domain.ids import JobId
from leaseway.domain.job import Job

LOOKS_MAX = 5_000
LANES_MAX = 50
"""So many lanes are gone through one by one; where more fit, all jobs are, whatever their lane."""
NEWEST = JobId("~")
"""Comes after every id."""


class Looked(NamedTuple):
    """What one way has shown, the newest first."""

    ids: Sequence[JobId]
    upto: JobId | None
    """How far it came; None: to its end."""


class Found(NamedTuple):
    jobs: list[Job]
    upto: JobId | None
    """Where to go on; None: there are no others. What is older has not been looked at, even if few were found."""


def together(ways: Sequence[Looked], limit: int) -> Looked:
    """All ways as one. It came as far as the one that came least far, which has still to show what lies behind."""
    upto = max((way.upto for way in ways if way.upto is not None), default=None)
    ids = {id_ for way in ways for id_ in way.ids if upto is None or id_ >= upto}
    newest = sorted(ids, reverse=True)[:limit]
    return Looked(newest, newest[-1] if len(ids) > limit else upto)
