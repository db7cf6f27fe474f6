"""Traces: the caller, the submission and the run that it caused, without confidential data."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from tests.api.running_service import run_service

from leaseway import App, Fail
from leaseway.domain.errors import KeyConflict, StoreBusy
from leaseway.telemetry.otel import OtelTracing, link_to, provider
from leaseway.wiring import OTEL_DISABLED, OTEL_SWITCHES, otel, switch_of_environment, tracing_here
from leaseway.worker.context import Context, SyncContext

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Seen:
    """An app with tracing, and its spans."""

    def __init__(self, **options: object) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)  # type: ignore[arg-type]
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.app = App("memory://")
        self.app._world = self.app._world._replace(tracing=OtelTracing(self.provider))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    yield seen
    seen.provider.shutdown()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Clears the cached environment, so that tests do not affect each other."""
    otel.cache_clear()
    yield
    otel.cache_clear()


def linked(span: ReadableSpan) -> list[str]:
    return [f"{link.context.span_id:016x}" for link in span.links]


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


async def test_a_request_goes_on_in_the_callers_trace_and_the_job_is_linked_to_it(seen: Seen) -> None:
    """A user must be able to follow a request in the caller's system to an attempt that failed an hour later."""

    @seen.app.job(attempts=1)
    async def charge(card: str) -> None:
        raise Fail(card, code="declined")

    async with run_service(seen.app) as served:
        sent = {"kind": "charge", "arguments": {"card": "s3cret card"}}
        answer = await served.client.post("/v1/jobs", json=sent, headers={"traceparent": CALLER})
        assert answer.status_code == 202
        assert (await served.client.get("/healthz")).status_code == 200
        await served.settle()
    request, run = seen.span("POST /v1/jobs"), seen.span("run charge")
    assert request.kind is SpanKind.SERVER
    assert request.parent is not None
    assert f"00-{request.parent.trace_id:032x}-{request.parent.span_id:016x}-01" == CALLER
    assert linked(run) == [id_of(request)]
    assert (run.status.status_code, run.status.description) == (StatusCode.ERROR, "declined")
    fields = dict(request.attributes or {})
    assert fields.pop("leaseway.request_id") == answer.headers["x-request-id"]
    assert fields == {
        "http.request.method": "POST", "http.route": "/v1/jobs", "http.response.status_code": 202,
        "leaseway.tenant": "default",
    }  # fmt: skip
    everything = "".join(span.to_json() for span in seen.exporter.get_finished_spans())
    assert "s3cret card" not in everything
    assert "healthz" not in everything


async def test_routes_are_named_as_they_are_declared_and_refusals_are_seen(seen: Seen) -> None:
    """Span names with job ids or client input make every list of traces useless."""
    async with run_service(seen.app) as served:
        await served.client.get("/v1/jobs/00000000000000000000000001")
        await served.client.get("/made/up")
        await served.client.request("PROPFIND", "/v1/jobs")
    shown = {
        span.name: (span.attributes or {}).get("http.response.status_code")
        for span in seen.exporter.get_finished_spans()
    }
    assert shown == {"GET /v1/jobs/{id}": 404, "GET": 404, "_OTHER /v1/jobs": 405}


async def test_nobody_else_makes_spans_of_our_requests(environment: pytest.MonkeyPatch, seen: Seen) -> None:
    """If a tracer provider exists, FastAPI instrumentation would record each request twice, with the ticket in its
    query string.
    """
    environment.setattr(trace, "_TRACER_PROVIDER", seen.provider)
    async with run_service(seen.app) as served:
        assert (await served.client.get("/v1/jobs?cursor=ticket")).status_code == 400
    (span,) = seen.exporter.get_finished_spans()
    assert span.name == "GET /v1/jobs"
    assert "ticket" not in span.to_json()


async def test_a_submission_that_is_refused_is_seen_and_its_words_are_not(seen: Seen) -> None:
    """Error messages repeat user input, which must not reach the collector."""

    @seen.app.job
    async def count(number: int) -> None: ...

    await count.options(key="s3cret").submit(number=1)
    with pytest.raises(KeyConflict, match="s3cret"):
        await count.options(key="s3cret").submit(number=2)
    _, refused = seen.spans("submit count")
    assert refused.status.status_code is StatusCode.ERROR
    assert (refused.attributes or {})["error.type"] == "KeyConflict"
    assert "s3cret" not in refused.to_json()


async def test_jobs_of_one_call_share_their_submission_and_children_know_their_parent(seen: Seen) -> None:
    """A thousand jobs of one call need one span for their submission, and a child must link to the attempt that
    submitted it.
    """
    app = seen.app

    @app.job
    async def child() -> None: ...

    @app.job
    async def parent(ctx: Context) -> None:
        ctx.submit(child.bind())

    @app.job
    def plain_parent(ctx: SyncContext) -> None:
        ctx.submit(child.bind())

    await app.submit_many([parent.bind(), plain_parent.bind()])
    await app.run_worker(until_empty=True)
    submitted = seen.span("submit")
    assert (submitted.attributes or {})["messaging.batch.message_count"] == 2
    parents = [seen.span("run parent"), seen.span("run plain_parent")]
    assert [linked(span) for span in parents] == [[id_of(submitted)]] * 2
    born = [link for span in seen.spans("run child") for link in linked(span)]
    assert sorted(born) == sorted(id_of(span) for span in parents)


async def test_a_span_of_the_handlers_own_is_inside_its_attempt(seen: Seen) -> None:
    """Calls of instrumented libraries must appear inside the attempt that made them."""
    app, tracer = seen.app, seen.provider.get_tracer("shop")

    @app.job
    def plain() -> None:
        with tracer.start_as_current_span("inside"):
            pass

    await plain.submit()
    await app.run_worker(until_empty=True)
    inside = seen.span("inside").parent
    assert inside is not None
    assert f"{inside.span_id:016x}" == id_of(seen.span("run plain"))
    assert not trace.get_current_span().get_span_context().is_valid


async def test_what_is_not_sampled_is_not_kept_with_the_job() -> None:
    """Such a link would lead to a span that does not exist."""
    seen = Seen(sampler=ALWAYS_OFF)

    @seen.app.job
    async def count() -> None: ...

    await count.submit()
    rows = (await seen.app.store()).jobs._state.rows  # type: ignore[attr-defined]
    assert [row.new.trace for row in rows.values()] == [None]


async def test_a_store_that_does_not_say_whose_doing_it_was_keeps_no_job_from_running(seen: Seen) -> None:
    """A trace is less important than the job."""

    @seen.app.job
    async def count() -> int:
        return 1

    async def busy(_: Sequence[object]) -> None:
        raise StoreBusy("others hold it")

    store = await seen.app.store()
    store.jobs.traces = busy  # type: ignore[method-assign, assignment]
    job = await count.submit()
    await seen.app.run_worker(until_empty=True)
    assert (await seen.app.wait(job)).result == 1
    assert linked(seen.span("run count")) == []


@pytest.mark.parametrize("origin", ["", "nonsense", CALLER + "0", CALLER.replace("b7ad6b7169203331", "0" * 16)])
def test_what_a_store_says_may_be_anything(origin: str) -> None:
    """An invalid stored trace context must not stop the job."""
    assert link_to(origin) is None


async def test_over_http_the_service_is_a_part_of_the_callers_trace(
    environment: pytest.MonkeyPatch, seen: Seen, tmp_path: Path
) -> None:
    """Workers and clients without database access need complete traces, too."""
    environment.setattr(trace, "_TRACER_PROVIDER", seen.provider)
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        far = App(served.url)

        @far.job
        async def count() -> None: ...

        await count.submit()
        await far.run_worker(until_empty=True)
        await far.close()
    submitted, taken = seen.span("submit count"), seen.span("POST /v1/work/submit")
    assert taken.parent is not None
    assert f"{taken.parent.span_id:016x}" == id_of(submitted)
    assert linked(seen.span("run count")) == [id_of(submitted)]


async def test_a_client_cannot_keep_what_it_likes_as_a_trace(seen: Seen) -> None:
    """The stored context is sent to the operator's collector."""
    async with run_service(seen.app) as served:
        job = {"id": f"{1:026}", "kind": "count", "payload": "{}"}
        refused = await served.client.post("/v1/work/submit", json={"jobs": [{**job, "trace": "x" * 55}]})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/trace")
        taken = await served.client.post("/v1/work/submit", json={"jobs": [{**job, "trace": CALLER}]})
        assert taken.status_code == 200
        wants = {"queues": ["default"], "count": 1, "token": "token-1"}
        await served.client.post("/v1/work/exchange", json={"worker": "w", "wants": wants})
        held = {"leases": [{"id": job["id"], "token": "token-1", "lease_us": 1_000_000}]}
        assert (await served.client.post("/v1/work/traces", json=held)).json() == {"value": {job["id"]: CALLER}}


# -- switches -------------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*OTEL_SWITCHES, OTEL_DISABLED, "OTEL_EXPORTER_OTLP_PROTOCOL", "LEASEWAY_LOG"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("said", "switch"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "shop"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, None),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, None),
    ],
)
def test_the_usual_variables_switch_it_on_and_off(
    environment: pytest.MonkeyPatch, said: dict[str, str], switch: str | None
) -> None:
    """Users expect the variables of OpenTelemetry to work."""
    for name, value in said.items():
        environment.setenv(name, value)
    assert switch_of_environment() == switch


def test_without_the_extra_one_line_says_so_and_the_work_goes_on(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A variable that the platform sets for all programs must not stop those without the optional package."""
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    environment.delitem(sys.modules, "leaseway.telemetry.otel")
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        environment.setitem(sys.modules, name, None)
    assert [App("memory://").world.tracing for _ in range(2)] == [None, None]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is set" in line
    assert "pip install 'leaseway[otel]'" in line


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]
)
def test_what_nobody_here_can_do_is_said(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    """An unsupported exporter must be reported, or the user would search for missing spans."""
    environment.setenv(name, value)
    assert provider() is None
    assert f"{name}: must be" in caplog.text
    assert value in caplog.text


def test_a_program_that_traces_by_itself_is_joined(environment: pytest.MonkeyPatch, seen: Seen) -> None:
    """The program's own tracer provider decides where spans go, so nothing has to be configured twice."""
    assert tracing_here() is None
    environment.setattr(trace, "_TRACER_PROVIDER", seen.provider)
    found = tracing_here()
    assert isinstance(found, OtelTracing)
    with found.submitting([]):
        pass
    assert len(seen.spans("submit")) == 1
