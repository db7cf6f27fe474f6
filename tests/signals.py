"""Signal settings for processes that a test starts and interrupts."""

import signal


def accept_interrupts() -> None:
    """Restore the default action of SIGINT. Pass it as `preexec_fn`.

    A shell starts background processes with SIGINT ignored, and all their children inherit that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
