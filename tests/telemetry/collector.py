"""A collector for tests: a real OTLP/HTTP receiver on the loopback interface that keeps the received spans."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(ThreadingHTTPServer):
    """The received spans, by the name of the service that sent them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Door)
        self.spans: list[tuple[str, Span]] = []
        self.paths: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, path: str, raw: bytes) -> None:
        self.paths.add(path)
        for resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
            fields = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(fields["service.name"], span) for span in scope.spans]

    def one(self, name: str) -> Span:
        (span,) = [span for _, span in self.spans if span.name == name]
        return span


class Door(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Collector)
        self.server.take(self.path, gzip.decompress(raw) if self.headers["Content-Encoding"] == "gzip" else raw)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def facts_of(span: Span) -> dict[str, object]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}
