"""The names of things that cross every border of the house."""

from typing import NewType

JobId = NewType("JobId", str)
"""26 characters, sortable by submission time, made by the submitter so that submitting can be repeated."""

Token = NewType("Token", str)
"""Random, new with every claim, compared for equality in every write of the lease's owner."""

WorkerId = NewType("WorkerId", str)
"""One running worker process; never reused after a restart."""

Instant = int
"""Microseconds since 1970 on the store's clock. Only the store compares instants with now."""

SECOND_US = 1_000_000
