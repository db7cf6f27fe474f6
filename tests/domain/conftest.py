"""The same examples in every run, and no stopwatch: a red build means a change, not a die or a busy machine."""

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")
