"""The temporary server of tests, started from given binaries."""

import tempfile
from pathlib import Path

import psycopg
import pytest

from leaseway.testing.postgres import FOLDER, NEEDED, PostgresServer, postgres_server


def folder_of(server: PostgresServer) -> Path:
    """The folder of the running server program."""
    assert server.process is not None
    return Path(f"/proc/{server.process.pid}/exe").readlink().parent


def test_the_given_binaries_are_used(server: PostgresServer) -> None:
    """A test of another version would otherwise run the version of the wheel."""
    with postgres_server(binaries=server.binaries) as other:
        assert folder_of(other) == server.binaries.resolve()
        with psycopg.connect(other.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_environment_variable_is_used(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CI selects the version by it."""
    monkeypatch.setenv(FOLDER, str(server.binaries))
    assert PostgresServer(tmp_path, {}).binaries == server.binaries


def test_a_folder_without_a_server_is_an_error(tmp_path: Path) -> None:
    """Using the wheel instead would test another version than requested."""
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}: there is no postgres; {FOLDER} names the folder"):
        PostgresServer(tmp_path, {}, tmp_path)


def test_binaries_that_cannot_be_executed_are_named(tmp_path: Path) -> None:
    """The account under which root starts the server cannot enter a private home."""
    for name in NEEDED:
        (tmp_path / name).write_text("#!/bin/sh\n")
    with pytest.raises(PermissionError, match=r"may not execute it; copy the installation to a folder"):
        PostgresServer(tmp_path, {}, tmp_path)


def test_a_failure_of_initdb_shows_its_output(tmp_path: Path) -> None:
    """An exit code alone explains nothing."""
    with tempfile.TemporaryDirectory() as folder:
        binaries = Path(folder)
        binaries.chmod(0o755)
        for name in NEEDED:
            (binaries / name).write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "no room" >&2; exit 1; }\n')
            (binaries / name).chmod(0o755)
        with pytest.raises(RuntimeError, match=r"initdb failed:\nno room"):
            PostgresServer(tmp_path, {}, binaries).create()
