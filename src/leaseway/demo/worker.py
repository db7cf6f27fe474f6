"""One worker process of the demo: the same `App.work` that `leaseway work` calls."""

import os
import sys
import threading
from pathlib import Path

from leaseway.demo.client import Client
from leaseway.demo.jobs import app_at


def end_with_parent() -> None:
    """The parent holds the other end of stdin: when it is gone, however it died, so are we."""
    os.read(0, 1)
    os._exit(1)


def main(file: str, port: str, name: str, concurrency: str) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    app, _ = app_at(Path(file), Client(int(port), name))
    app.work(concurrency=int(concurrency), grace=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
