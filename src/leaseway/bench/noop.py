"""The job that every probe submits and runs: it does nothing and carries 200 bytes."""

from typing import Any

from leaseway.app import App, JobHandle
from leaseway.telemetry.log_events import NoEvents

PAYLOAD_BYTES = 200
TEXT = "x" * (PAYLOAD_BYTES - len('{"text":""}'))

Figures = dict[str, Any]
"""What a probe found, as it travels between processes."""


def app_at(url: str) -> tuple[App, JobHandle[..., Any]]:
    app = App(url, events=NoEvents())

    @app.job
    async def noop(text: str) -> None:
        pass

    return app, noop
