"""Stories in which something goes wrong, by the rule that must notice; and some in which all is well but looks odd."""

from tests.chaos.tales import leases, liveness, results, submissions
from tests.chaos.tales.register import BROKEN, SOUND, Tale

__all__ = ["BROKEN", "SOUND", "Tale", "leases", "liveness", "results", "submissions"]
