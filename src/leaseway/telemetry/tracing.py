"""Decides whether tracing is on, by the environment variables of OpenTelemetry.

OpenTelemetry is imported only if tracing is on.
"""

import logging
import os
import sys
from functools import cache

from leaseway.ports.telemetry import Tracing
from leaseway.telemetry.log import JobLogContext, wants_json

log = logging.getLogger("leaseway")

EXPORTER = "OTEL_TRACES_EXPORTER"
SWITCHES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT", EXPORTER)
"""Each of these variables switches tracing on. OTEL_SERVICE_NAME alone does not."""
DISABLED = "OTEL_SDK_DISABLED"


def tracing_here() -> Tracing | None:
    """The tracer for apps that are created now; None: tracing is off."""
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
    """Whether the program has set up a tracer provider itself."""
    trace = sys.modules.get("opentelemetry.trace")
    is_disabled = os.environ.get(DISABLED, "").strip().lower() == "true"
    if trace is None or is_disabled or "opentelemetry.sdk.trace" not in sys.modules:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


@cache
def otel(switch: str | None) -> Tracing | None:
    """Created once per process. Without the package, a warning is logged and tracing stays off."""
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
