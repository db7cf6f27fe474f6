"""The same examples in every run and no time limit: a failing build means a change, not chance or a busy machine."""

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")
