"""Whether anybody traces: asked of the environment, as OpenTelemetry has it.

Nothing of OpenTelemetry is imported before somebody wants it.
"""

import logging
import os
import sys
from functools import cache

from leaseway.ports.tracer import Tracing
from leaseway.telemetry.json_logging import JobLogContext, wants_json

log = logging.getLogger("leaseway")

EXPORTER = "OTEL_TRACES_EXPORTER"
SWITCHES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT", EXPORTER)
"""Each of these says that spans shall go somewhere. OTEL_SERVICE_NAME alone is only a name."""
DISABLED = "OTEL_SDK_DISABLED"


def tracing_here() -> Tracing | None:
    """None: nobody wants to know. The answer is for those who are made now; who asks later may get another."""
    switch = switch_of_environment()
    if (switch or has_provider()) and (tracing := otel(switch)) is not None:
        return tracing
    return JobLogContext() if wants_json() else None


def switch_of_environment() -> str | None:
    """The variable that switches tracing on."""
    if os.environ.get(DISABLED, "").strip().lower() == "true" or os.environ.get(EXPORTER, "").strip() == "none":
        return None
    return next((name for name in SWITCHES if os.environ.get(name, "").strip()), None)


def has_provider() -> bool:
    """The program that we are a part of traces by arrangements of its own."""
    trace = sys.modules.get("opentelemetry.trace")
    is_disabled = os.environ.get(DISABLED, "").strip().lower() == "true"
    if trace is None or is_disabled or "opentelemetry.sdk.trace" not in sys.modules:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


@cache
def otel(switch: str | None) -> Tracing | None:
    """Once in a process. Without the extra the work goes on, and one line says why nothing is seen of it."""
    try:
        from leaseway.telemetry.otel import OtelTracing, provider
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "opentelemetry":
            raise
        log.warning(
            "%s is set, but OpenTelemetry is not installed, so nothing is traced; install it with: "
            "pip install 'leaseway[otel]', or set %s=true", switch, DISABLED,
        )  # fmt: skip
        return None
    made = provider()
    return None if made is None else OtelTracing(made)
