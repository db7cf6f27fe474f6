"""Identifiers and units of time that every layer uses."""

import re
from typing import NewType

JobId = NewType("JobId", str)
"""26 characters: 10 for the millisecond in which it was made, 16 random ones. Ids sort by that time. The submitter
creates it, so that a submission can be repeated. An id belongs to the tenant that submits under it first."""

Token = NewType("Token", str)
"""A lease's token: random, new with every claim, compared for equality in every write of the lease's owner."""

WorkerId = NewType("WorkerId", str)
"""One running worker process; never reused after a restart."""

Instant = int
"""Microseconds since 1970 on the store's clock. Only the store compares instants with the current time."""

SECOND_US = 1_000_000

FENCE_EPOCH = 1 << 32
"""A fence is a number of an epoch, times this, plus a counter. A store that can lose claims in a failover starts a new
epoch with each one, so that no fence is assigned twice. Epochs start at 0, and counters at 1."""

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 in lower case: no two letters look alike, and texts sort like the numbers they encode."""

JOB_ID = re.compile(f"[{ALPHABET}]{{26}}")
ID_TIME_LENGTH = 10
_DIGITS = str.maketrans(ALPHABET, "0123456789abcdefghijklmnopqrstuv")


def id_instant(id_: str) -> Instant | None:
    """When an id was made, on the clock of its maker. None: it does not have the form of a job id."""
    if JOB_ID.fullmatch(id_) is None:
        return None
    return int(id_[:ID_TIME_LENGTH].translate(_DIGITS), 32) * 1_000
