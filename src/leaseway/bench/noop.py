"""The job that every probe submits and runs: it does nothing and has a payload of 200 bytes."""

from typing import Any

from leaseway.app import App, JobHandle
from leaseway.telemetry.log_events import NoEvents

PAYLOAD_BYTES = 200
TEXT = "x" * (PAYLOAD_BYTES - len('{"text":""}'))

Figures = dict[str, Any]
"""The result of a probe, as it is sent between processes."""


def app_at(url: str) -> tuple[App, JobHandle[..., Any]]:
    app = App(url, events=NoEvents())

    @app.job
    async def noop(text: str) -> None:
        pass

    return app, noop
