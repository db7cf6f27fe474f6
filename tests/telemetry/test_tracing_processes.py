"""One process submits, another works, and both send spans to a collector, configured by environment variables as users
do it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tests.telemetry.collector import collecting, facts_of

from leaseway import App

HERE = Path(__file__).parent


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "LEASEWAY_"))}
    known = {"PYTHONPATH": str(HERE), "LEASEWAY_STORE": f"sqlite:///{folder / 'work.db'}"}
    return subprocess.run(
        [sys.executable, *command], env={**clean, **known, **environment}, capture_output=True, text=True, timeout=110
    )


def work(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "leaseway.cli", "work", "tasks:app", "--until-empty", **environment)


def test_a_run_is_linked_to_the_submission_in_another_process(tmp_path: Path) -> None:
    """From a failed attempt, the user must find its submission, and its log lines must lead to both."""
    with collecting() as collector:
        told = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        submitted = run(tmp_path, str(HERE / "tasks.py"), **told, OTEL_SERVICE_NAME="shop")
        assert submitted.returncode == 0, submitted.stderr
        worked = work(tmp_path, **told, LEASEWAY_LOG="json")
        assert worked.returncode == 0, worked.stderr
    greeted, broken = submitted.stdout.split()
    assert collector.paths == {"/v1/traces"}
    assert sorted((service, span.name) for service, span in collector.spans) == [
        ("leaseway", "run break_down"),
        ("leaseway", "run greet"),
        ("shop", "submit break_down"),
        ("shop", "submit greet"),
    ]

    submit, run_span = collector.one("submit greet"), collector.one("run greet")
    assert (submit.kind, run_span.kind) == (Span.SPAN_KIND_PRODUCER, Span.SPAN_KIND_CONSUMER)
    assert [(link.trace_id, link.span_id) for link in run_span.links] == [(submit.trace_id, submit.span_id)]
    assert run_span.trace_id != submit.trace_id
    assert not run_span.parent_span_id
    fields = facts_of(run_span)
    assert (fields["messaging.message.id"], fields["leaseway.attempt"], fields["leaseway.outcome"]) == (
        greeted,
        1,
        "done",
    )
    assert facts_of(submit)["messaging.message.id"] == greeted

    failed = collector.one("run break_down")
    assert (failed.status.code, facts_of(failed)["error.type"]) == (Status.STATUS_CODE_ERROR, "ValueError")
    assert facts_of(failed)["messaging.message.id"] == broken
    assert "s3cret" not in str(collector.spans), "what users say stays out of traces"

    (line,) = [each for each in map(json.loads, worked.stderr.splitlines()) if each["logger"] == "shop"]
    assert (line["message"], line["job"], line["kind"], line["attempt"]) == ("greeting", greeted, "greet", 1)
    assert (line["trace_id"], line["span_id"]) == (run_span.trace_id.hex(), run_span.span_id.hex())


def greet(name: str) -> None:
    """The function of the same name in the other process runs instead."""


def test_a_collector_that_is_away_keeps_nobody_from_work(tmp_path: Path) -> None:
    """A failure of the telemetry must never stop the work."""
    with collecting() as collector:
        nobody = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    app = App(f"sqlite:///{tmp_path / 'work.db'}")
    app.submit_sync(app.job(greet).bind(name="Ada"))
    app.close_sync()
    worked = work(tmp_path, **nobody, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert worked.returncode == 0, worked.stderr
    assert "1 lease settled" in worked.stdout


OFF = """
import sqlite3, sys
from tasks import app, greet
greet.submit_sync(name="Ada")
app.close_sync()
assert app.world.tracing is None
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
((trace,),) = sqlite3.connect(sys.argv[1]).execute("SELECT trace FROM jobs")
assert trace is None
"""


def test_without_variables_nothing_is_imported_and_nothing_is_kept(tmp_path: Path) -> None:
    """Users without tracing must not pay for it. A service name alone does not configure an exporter."""
    done = run(tmp_path, "-c", OFF, str(tmp_path / "work.db"), OTEL_SERVICE_NAME="shop")
    assert done.returncode == 0, done.stderr
