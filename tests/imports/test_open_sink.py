"""The URL in a spec opens a sink, or gives an error that lists the known sinks."""

from pathlib import Path

import pytest

from leaseway.domain.errors import StoreRefused
from leaseway.imports.domain.page import ColumnType
from leaseway.imports.run.assembly import sink_for_url
from leaseway.imports.sinks.mongodb import MongoSink
from leaseway.imports.sinks.parquet.sink import ParquetSink
from leaseway.imports.sinks.postgres.sink import PostgresSink
from leaseway.imports.sinks.sqlite.sink import SqliteSink

KINDS = {
    "sqlite:///data.db": SqliteSink,
    "postgresql://host/places": PostgresSink,
    "postgres://host/places": PostgresSink,
    "mongodb://host/places": MongoSink,
    "mongodb+srv://host.example.org/places": MongoSink,
    "parquet:///places": ParquetSink,
}


@pytest.mark.parametrize(("url", "kind"), KINDS.items())
def test_an_address_says_which_sink(url: str, kind: type) -> None:
    """A plan must be possible while the database is down, so the URL alone decides the sink."""
    assert type(sink_for_url(url, "poi", {"title": ColumnType.TEXT})) is kind


def test_folders_are_named_as_files_are() -> None:
    """The same number of slashes must mean the same folder for Parquet as for SQLite."""
    near, far = sink_for_url("parquet:///a/b", "poi", {}), sink_for_url("parquet:////a/b", "poi", {})
    assert isinstance(near, ParquetSink)
    assert isinstance(far, ParquetSink)
    assert (near.folder, far.folder) == (Path("a/b"), Path("/a/b"))


@pytest.mark.parametrize("url", ["parquet://", "parquet:///", "parquet://places"])
def test_a_folder_without_a_name_is_refused(url: str) -> None:
    """Without a name, the files would be written to the current directory."""
    with pytest.raises(StoreRefused, match=r"sink.url: .* does not contain a folder; write three slashes"):
        sink_for_url(url, "poi", {})


def test_an_unknown_sink_is_refused() -> None:
    """After a mistyped sink URL, the user must learn which kinds of sink exist."""
    with pytest.raises(
        StoreRefused, match=r"sink.url: mysql:// is not supported; supported are sqlite:///data.db, .*parquet:///"
    ):
        sink_for_url("mysql://host/places", "poi", {})


@pytest.mark.parametrize(
    ("url", "extra"),
    [("postgresql://host/a", "postgres"), ("mongodb://host/a", "mongodb"), ("parquet:///a", "parquet")],
)
def test_a_driver_that_is_missing_is_named(url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user needs the install command, not the name of a module."""
    monkeypatch.setattr("leaseway.imports.run.assembly.find_spec", lambda name: None)
    with pytest.raises(StoreRefused, match=rf"pip install 'leaseway\[{extra}\]'"):
        sink_for_url(url, "poi", {})
