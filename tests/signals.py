"""Signal settings for processes that a test starts and interrupts."""

import signal


def accept_interrupts() -> None:
    """Restore the default actions of SIGINT and SIGHUP. Pass it as `preexec_fn`.

    A shell starts background processes with SIGINT ignored, `nohup` with SIGHUP, and all their children inherit that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
