"""Flower, the HTTP API of Celery, with Valkey: `POST /api/task/async-apply/noop`, with a password.

    python flower_peer.py PORT BROKER

It needs nothing of this package, and runs in any environment with Flower.
"""

import os
import sys
import warnings

USER, PASSWORD = "bench", "bench"


def main(port: str, broker: str) -> None:
    os.environ["FLOWER_BASIC_AUTH"] = f"{USER}:{PASSWORD}"
    warnings.simplefilter("ignore")
    from celery import Celery

    app = Celery("bench", broker=broker, set_as_current=True)
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)

    @app.task(name="noop")  # type: ignore[untyped-decorator]
    def noop(text: str) -> None:
        pass

    app.start(["flower", "--address=127.0.0.1", f"--port={port}", "--logging=error", "--enable-events=false"])


if __name__ == "__main__":
    main(*sys.argv[1:])
