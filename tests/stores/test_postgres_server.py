"""The throw-away server of tests, started from binaries that somebody names."""

import tempfile
from pathlib import Path

import psycopg
import pytest

from leaseway.testing.postgres import FOLDER, NEEDED, PostgresServer, postgres_server


def folder_of(server: PostgresServer) -> Path:
    """Where the program that runs came from."""
    assert server.process is not None
    return Path(f"/proc/{server.process.pid}/exe").readlink().parent


def test_the_binaries_that_were_given_are_the_ones_that_run(server: PostgresServer) -> None:
    """Whoever tries another version and silently gets the wheel's has tried nothing."""
    with postgres_server(binaries=server.binaries) as other:
        assert folder_of(other) == server.binaries.resolve()
        with psycopg.connect(other.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_environment_names_them_too(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER, str(server.binaries))
    assert PostgresServer(tmp_path, {}).binaries == server.binaries


def test_a_folder_without_a_server_is_named_and_so_is_the_variable(tmp_path: Path) -> None:
    """The packaged server must not be used instead: its version differs from the one that was asked for."""
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}: there is no postgres; {FOLDER} names the folder"):
        PostgresServer(tmp_path, {}, tmp_path)


def test_binaries_that_may_not_be_run_are_named_with_the_way_out(tmp_path: Path) -> None:
    """A private home cannot be entered by the account under which root starts the server."""
    for name in NEEDED:
        (tmp_path / name).write_text("#!/bin/sh\n")
    with pytest.raises(PermissionError, match=r"may not execute it; copy the installation to a folder"):
        PostgresServer(tmp_path, {}, tmp_path)


def test_why_the_data_folder_could_not_be_made_is_said(tmp_path: Path) -> None:
    """The exit code alone does not say what to do."""
    with tempfile.TemporaryDirectory() as folder:
        binaries = Path(folder)
        binaries.chmod(0o755)
        for name in NEEDED:
            (binaries / name).write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "no room" >&2; exit 1; }\n')
            (binaries / name).chmod(0o755)
        with pytest.raises(RuntimeError, match=r"initdb failed:\nno room"):
            PostgresServer(tmp_path, {}, binaries).create()
