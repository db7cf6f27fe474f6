"""The end of a process that ran other people's code."""

import os
import sys
import threading
import time

LINGER_SECONDS = 2.0


def leave_soon(code: int) -> None:
    """Let Python end in its own way, but not for ever: a handler's thread that hangs must not keep it alive."""

    def insist() -> None:
        time.sleep(LINGER_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    threading.Thread(target=insist, name="leaseway-leave", daemon=True).start()
