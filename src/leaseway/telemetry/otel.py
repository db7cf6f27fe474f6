"""OpenTelemetry spans for submissions, attempts and requests. Imported only if tracing is on.

    submit greet   PRODUCER   its context is stored with the job
    run greet      CONSUMER   one per attempt, in its own trace, linked to the span that submitted the job
    POST /v1/jobs  SERVER     one per request to the service

Attempts are linked to the submission, not its children, because a job may run hours later, one submission may have
thousands of jobs, and jobs may submit jobs without end. Spans contain no arguments, results or error messages.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TraceFlags

from leaseway.domain.job import Lease, NewJob
from leaseway.domain.outcome import Failed, Outcome
from leaseway.telemetry import log as log_lines
from leaseway.telemetry.log import JOB, outcome_name

log = logging.getLogger("leaseway")

NAME = "leaseway"
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TIMEOUTS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
TIMEOUT_SECONDS = 3.0
"""Instead of the default of ten: a program that exits waits this long for an unreachable collector."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
ERROR_STATUS = 500

SpanAttributes = Mapping[str, str | int]


# -- where spans go -------------------------------------------------------------------------------------------------


def provider() -> trace.TracerProvider | None:
    """The program's own provider, or one built from the environment. None: the environment asks for an unsupported
    exporter."""
    present = trace.get_tracer_provider()
    if not isinstance(present, trace.ProxyTracerProvider):
        return present
    exporter = exporter_of_environment()
    if exporter is None:
        return None
    made = TracerProvider(resource=resource())
    made.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(made)
    return made


def resource() -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are read by OpenTelemetry itself."""
    is_named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create({} if is_named else {SERVICE_NAME: NAME})


def exporter_of_environment() -> SpanExporter | None:
    match os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp":
        case "otlp":
            return otlp_exporter()
        case "console":
            return ConsoleSpanExporter()
        case other:
            log.warning("OTEL_TRACES_EXPORTER: must be otlp, console or none (is %.40r); nothing is traced", other)
            return None


def otlp_exporter() -> SpanExporter | None:
    said = next((value for name in PROTOCOLS if (value := os.environ.get(name, "").strip())), "http/protobuf")
    if said != "http/protobuf":
        log.warning("%s: must be http/protobuf (is %.40r); nothing is traced", PROTOCOLS[1], said)
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(timeout=None if any(name in os.environ for name in TIMEOUTS) else TIMEOUT_SECONDS)


# -- spans ----------------------------------------------------------------------------------------------------------


class OtelTracing:
    has_traces = True

    def __init__(self, provider: trace.TracerProvider) -> None:
        from leaseway import __version__

        self._tracer = provider.get_tracer(NAME, __version__)
        log_lines.trace_fields = trace_fields

    @contextmanager
    def submitting(self, jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
        kinds = {job.kind for job in jobs}
        name = f"submit {jobs[0].kind}" if len(kinds) == 1 else "submit"
        with self._span(name, SpanKind.PRODUCER, submission_attributes(jobs)):
            origin = self.origin()
            yield jobs if origin is None else [replace(job, trace=origin) for job in jobs]

    def origin(self) -> str | None:
        """The current trace context. None, too, if it is not sampled, because a link to it would lead nowhere."""
        context = trace.get_current_span().get_span_context()
        if not (context.is_valid and context.trace_flags.sampled):
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    @contextmanager
    def running(self, lease: Lease, origin: str | None) -> Iterator["AttemptSpan"]:
        linked = None if origin is None else link_to(origin)
        links = () if linked is None else (linked,)
        job = JOB.set(lease)
        try:
            with self._span(
                f"run {lease.kind}", SpanKind.CONSUMER, attempt_attributes(lease), Context(), links
            ) as span:
                yield AttemptSpan(span)
        finally:
            JOB.reset(job)

    @contextmanager
    def serving(self, method: str, headers: Mapping[str, str]) -> Iterator["ServedSpan"]:
        known = method if method in METHODS else "_OTHER"
        attributes, context = {"http.request.method": known}, propagate.extract(headers)
        with self._span(known, SpanKind.SERVER, attributes, context) as span:
            yield ServedSpan(span, known)

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: SpanAttributes,
        context: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        """Record an error by its type only, because its message may contain user data."""
        with self._tracer.start_as_current_span(
            name, context, kind, attributes, links, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(StatusCode.ERROR)
                raise


class AttemptSpan:
    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, outcome: Outcome) -> None:
        self._span.set_attribute("leaseway.outcome", outcome_name(outcome))
        if isinstance(outcome, Failed):
            self._span.set_attribute("error.type", outcome.failure.code)
            self._span.set_status(StatusCode.ERROR, outcome.failure.code)


class ServedSpan:
    def __init__(self, span: Span, method: str) -> None:
        self._span = span
        self._method = method

    def end(self, route: str | None, status: int, attributes: Mapping[str, str]) -> None:
        if route is not None:
            self._span.update_name(f"{self._method} {route}")
            self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)
        self._span.set_attributes({f"leaseway.{name}": value for name, value in attributes.items()})
        if status >= ERROR_STATUS:
            self._span.set_attribute("error.type", str(status))
            self._span.set_status(StatusCode.ERROR)


def link_to(origin: str) -> Link | None:
    """A link to a stored trace context; None if the context is invalid."""
    found = TRACEPARENT.fullmatch(origin)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return Link(context) if context.is_valid else None


def submission_attributes(jobs: Sequence[NewJob]) -> SpanAttributes:
    attributes: dict[str, str | int] = {
        "messaging.system": NAME, "messaging.operation.name": "submit", "messaging.operation.type": "send",
    }  # fmt: skip
    queues = {job.queue for job in jobs}
    if len(queues) == 1:
        attributes["messaging.destination.name"] = jobs[0].queue
    if len(jobs) != 1:
        return {**attributes, "messaging.batch.message_count": len(jobs)}
    (job,) = jobs
    return {**attributes, "messaging.message.id": job.id, "leaseway.kind": job.kind, "leaseway.tenant": job.tenant}


def attempt_attributes(lease: Lease) -> SpanAttributes:
    return {
        "messaging.system": NAME, "messaging.operation.name": "run", "messaging.operation.type": "process",
        "messaging.destination.name": lease.queue, "messaging.message.id": lease.id, "leaseway.kind": lease.kind,
        "leaseway.tenant": lease.tenant, "leaseway.attempt": lease.attempts, "leaseway.fence": lease.fence,
    }  # fmt: skip


def trace_fields() -> Mapping[str, str]:
    """The ids of the current span, for log lines."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return log_lines.NO_FIELDS
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
