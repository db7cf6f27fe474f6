"""Keeps the tests themselves from the garbage collector: it would look through thousands of them again and again."""

import gc

unfreeze = gc.unfreeze


def freeze_for_good() -> None:
    """Also when a worker in this process ends, which gives the program its collector back as it was."""
    gc.collect()
    gc.freeze()
    gc.unfreeze = keep_frozen


def keep_frozen() -> None:
    pass
