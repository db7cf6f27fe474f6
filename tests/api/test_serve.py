"""`leaseway serve`, as a process."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from leaseway.cli.main import main

TASKS = """
from leaseway import App

app = App("sqlite:///work.db")


@app.job
async def add(x: int) -> int:
    return x
"""


@contextmanager
def running(place: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    command = [sys.executable, "-m", "leaseway.cli", "serve", "--json", "--port", "0", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEASEWAY_")}
    process = subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        assert told, process.communicate()[1]
        yield process, json.loads(told)["url"]
    finally:
        process.kill()
        process.communicate()


def answer(url: str, path: str, **options: Any) -> httpx2.Response:
    return httpx2.request("POST" if "json" in options else "GET", url + path, trust_env=False, timeout=30, **options)


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """Service managers stop a process with SIGTERM and expect exit code 0."""
    (tmp_path / "tasks.py").write_text(TASKS)
    with running(tmp_path, "tasks:app", "--no-auth") as (process, url):
        assert url.startswith("http://127.0.0.1:")
        assert answer(url, "/v1/jobs", json={"kind": "add", "arguments": {"x": 1}}).status_code == 202
        assert answer(url, "/v1/jobs", json={"kind": "other"}).json()["code"] == "unknown_kind"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert (tmp_path / "work.db").exists()


ENDING = """
import atexit, gc, sys

atexit.register(lambda: print(gc.get_freeze_count(), len(sys.modules), flush=True))
"""


def test_what_was_imported_is_not_looked_through_again(tmp_path: Path) -> None:
    """A full garbage collection over the imported modules blocked all requests for 50 ms about once a second."""
    (tmp_path / "tasks.py").write_text(TASKS + ENDING)
    with running(tmp_path, "tasks:app", "--no-auth") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout is not None
        frozen, modules = map(int, process.stdout.read().split())
    assert frozen > 10 * modules > 1_000


def test_a_request_under_way_is_answered_before_the_end(tmp_path: Path) -> None:
    """A deployment must not look like an error to clients."""
    with running(tmp_path, "--no-auth") as (process, url):
        id_ = answer(url, "/v1/jobs", json={"kind": "x"}).json()["id"]
        host, _, port = url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))) as line:
            line.sendall(f"GET /v1/jobs/{id_}/result?wait_seconds=30 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            answer(url, "/healthz")  # ensures that the service has read the other request
            process.send_signal(signal.SIGTERM)
            assert line.recv(100).startswith(b"HTTP/1.1 409")
        assert process.wait(30) == 0


def test_with_authentication_nobody_gets_in_without_a_key(tmp_path: Path) -> None:
    """The default must be safe without further configuration."""
    with running(tmp_path) as (_, url):
        refused = answer(url, "/v1/jobs")
        assert (refused.status_code, refused.json()["code"]) == (401, "not_authenticated")
        assert answer(url, "/healthz").status_code == 200


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEWAY_STORE", raising=False)
    return tmp_path


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_without_authentication_it_stays_on_the_loopback(
    place: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    """An open service on the network gives full access to every client that can connect."""
    assert main(["serve", "--no-auth", "--host", host]) == 2
    assert "omit --no-auth and create keys" in capsys.readouterr().err
    assert list(place.iterdir()) == []


def test_what_is_wrong_is_said_with_the_way_out(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator must learn which option to change."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another --port" in capsys.readouterr().err
    assert main(["serve", "--host", "192.0.2.1"]) == 2
    assert "choose another --host" in capsys.readouterr().err
    assert main(["serve", "--store", "memory://"]) == 2
    assert "exists only within" in capsys.readouterr().err
    assert main(["serve", "nobody:app"]) == 2
    assert "was not found" in capsys.readouterr().err


def test_a_missing_extra_is_named(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing optional package must name the command that installs it."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "leaseway.api.server", raising=False)
    assert main(["serve"]) == 2
    assert "pip install 'leaseway[serve]'" in capsys.readouterr().err


def test_a_store_that_does_not_fit_is_said_as_other_commands_say_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wrong file is a likely mistake, and a traceback does not explain it."""
    (place / "work.db").write_text("no database at all, but some text")
    assert main(["serve", "--port", "0", "--store", "sqlite:///work.db"]) == 2
    assert "Traceback" not in capsys.readouterr().err
