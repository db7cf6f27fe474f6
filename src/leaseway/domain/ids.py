"""Identifiers and units of time that every layer uses."""

from typing import NewType

JobId = NewType("JobId", str)
"""26 characters, sortable by submission time. The submitter creates it, so that a submission can be repeated."""

Token = NewType("Token", str)
"""A lease's token: random, new with every claim, compared for equality in every write of the lease's owner."""

WorkerId = NewType("WorkerId", str)
"""One running worker process; never reused after a restart."""

Instant = int
"""Microseconds since 1970 on the store's clock. Only the store compares instants with the current time."""

SECOND_US = 1_000_000
