"""No tests: for those who start a process in order to interrupt it."""

import signal


def hear_interrupts() -> None:
    """A suite that a shell started in the background has been told to ignore them, and its children with it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
