"""The `curl` of the documents behaves like curl, so that a document that passes works for its readers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from tests.docs import curl
from tests.programs import find_installed

OURS = [sys.executable, "-I", curl.__file__]
SECONDS_MAX = 20


class Echo(BaseHTTPRequestHandler):
    """Answers with the request as JSON; /stream sends one event and then nothing more."""

    protocol_version = "HTTP/1.1"
    headers_echoed = ("Accept", "Content-Type", "X-Name")

    def do_GET(self) -> None:
        if self.path == "/stream":
            self.stream()
        else:
            self.echo()

    do_POST = do_PUT = do_GET

    def echo(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        headers = {name: self.headers.get(name) for name in self.headers_echoed}
        reply = json.dumps([self.command, self.path, headers, body]).encode()
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nevent\r\n")
        self.wfile.flush()
        self.rfile.read(1)  # until the client closes the connection

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["ours", "curl"])
def program(request: pytest.FixtureRequest) -> list[str]:
    """Both programs must pass the same tests; the real one only where it is installed."""
    if request.param == "ours":
        return OURS
    installed = find_installed("curl")
    return [installed] if installed else pytest.skip("no curl is installed")


def run(program: list[str], *arguments: str) -> tuple[int, str]:
    # No proxy setting of this machine may come between the client and the server of the test.
    ended = subprocess.run(
        [*program, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env={"no_proxy": "*"},
    )
    return ended.returncode, ended.stdout


PLAIN = {"Accept": "*/*", "Content-Type": None, "X-Name": None}
JSON = {"Accept": "application/json", "Content-Type": "application/json", "X-Name": None}
REQUESTS = {
    "a path with a query": (["-s", "/jobs?a=1&b=2"], ["GET", "/jobs?a=1&b=2", PLAIN, ""]),
    "an error status": (["-s", "/missing"], ["GET", "/missing", PLAIN, ""]),
    "a JSON body": (["-s", "/jobs", "--json", '{"a": "ü"}'], ["POST", "/jobs", JSON, '{"a": "ü"}']),
    "a header": (["-s", "/", "-H", "X-Name: some value"], ["GET", "/", PLAIN | {"X-Name": "some value"}, ""]),
    "a replaced header": (["-s", "/", "-H", "Accept: text/plain"], ["GET", "/", PLAIN | {"Accept": "text/plain"}, ""]),
    "a method": (["-s", "-X", "PUT", "/"], ["PUT", "/", PLAIN, ""]),
    "joined options": (["-sN", "/"], ["GET", "/", PLAIN, ""]),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_the_one_that_curl_sends(name: str, program: list[str], url: str) -> None:
    """Otherwise a document could pass with requests that its readers never send."""
    arguments, expected = REQUESTS[name]
    code, output = run(program, *(url + word if word.startswith("/") else word for word in arguments))
    assert (code, json.loads(output)) == (0, expected)


def test_headers_are_shown_before_the_body(program: list[str], url: str) -> None:
    """Documents show statuses and headers with -i."""
    code, output = run(program, "-si", f"{url}/missing")
    assert code == 0
    assert output.startswith("HTTP/1.1 404 Not Found\n")
    assert '\n\n["GET", "/missing"' in output


def test_a_stream_is_printed_until_the_time_is_over(program: list[str], url: str) -> None:
    """A live stream never ends, so a document limits it with --max-time and shows what arrived until then."""
    assert run(program, "-sN", "--max-time", "0.5", f"{url}/stream") == (28, "event")


def test_a_refused_connection_is_an_error(program: list[str]) -> None:
    """A document must not pass while its service is down."""
    assert run(program, "-s", "http://127.0.0.1:1/") == (7, "")


@pytest.mark.parametrize("arguments", [["--compressed", "http://localhost"], [], ["http://a", "http://b"], ["-d", "x"]])
def test_an_unsupported_call_is_refused(arguments: list[str]) -> None:
    """An option that is silently ignored would make the document mean something else than it shows."""
    ended = subprocess.run([*OURS, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ended.returncode == 2
    assert "curl.py" in ended.stderr
