"""Histories with one violation, by the rule that must notice it; and some that look odd but are correct."""

from tests.chaos.tales import leases, liveness, results, submissions
from tests.chaos.tales.register import BROKEN, SOUND, Tale

__all__ = ["BROKEN", "SOUND", "Tale", "leases", "liveness", "results", "submissions"]
