"""Files with JSON lines or CSV. The cursor is a position in the file.

A line that cannot be parsed is returned as text and becomes a bad row; the other lines continue. The file must not
change during a run, because a position in another file is meaningless.
"""

import asyncio
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from leaseway.domain.errors import BadValue, TerminalError, UsageError
from leaseway.imports.domain.jsonpath import MISSING, parse_path
from leaseway.imports.domain.page import Page, Record
from leaseway.imports.domain.partition import Cursor, Shard
from leaseway.imports.sources.port import RequestClient, SourceCapabilities, SourceProbe
from leaseway.imports.spec.model import Spec

LINE_BYTES_MAX = 64 * 1_048_576
PAGE_LINES = 1_000
BOM = b"\xef\xbb\xbf"


class FilePosition(NamedTuple):
    offset: int
    """In bytes."""
    line: int
    """Lines before the position."""
    file: str
    """Size and modification time, to detect a changed file."""


class FilePage(NamedTuple):
    records: list[Record]
    place: FilePosition
    size_bytes: int
    is_end: bool


class FileSource:
    """The file of one spec. A relative path is relative to `folder`, the folder of the spec."""

    limit = None
    page_limit = PAGE_LINES
    confirm_max = 0

    def __init__(self, spec: Spec, folder: Path) -> None:
        if spec.source.file is None:
            raise BadValue("source.file", "is missing")
        self.name = spec.source.name
        self.path = folder / spec.source.file
        self.caps = SourceCapabilities(cursor="offset", page_max=PAGE_LINES)
        is_csv = spec.source.format == "csv" or (spec.source.format is None and self.path.suffix.lower() == ".csv")
        self._records_in = csv_records if is_csv else json_records
        self._key = parse_path("key", spec.resource.key).first

    def record_key(self, record: Record) -> Any:
        key = self._key(record)
        return None if key is MISSING else key

    def is_ours(self, shard: Shard) -> Callable[[Record], bool]:
        return lambda record: True

    async def probe(self, http: RequestClient) -> SourceProbe:
        await asyncio.to_thread(self._state)
        return SourceProbe()

    async def fetch(self, shard: Shard, cursor: Cursor | None, limit: int, http: RequestClient) -> Page:
        read = await asyncio.to_thread(self._read, cursor, limit)
        return Page(
            records=read.records,
            raw_count=len(read.records),
            next=None if read.is_end else read.place._asdict(),
            is_end=read.is_end,
            size_bytes=read.size_bytes,
        )

    async def present(self, ids: Sequence[str], http: RequestClient) -> frozenset[str]:
        raise BadValue("resource.deletes.sweep.confirm", "single records of a file cannot be requested")

    def _state(self) -> str:
        try:
            state = self.path.stat()
            if not self.path.is_file():
                raise UsageError(f"source.file: {self.path} is not a file")
        except OSError as error:
            raise UsageError(f"source.file: {self.path}: {error.strerror}") from error
        return f"{state.st_size}-{state.st_mtime_ns}"

    def _read(self, cursor: Cursor | None, limit: int) -> FilePage:
        file = self._state()
        place = FilePosition(0, 0, file) if cursor is None else FilePosition(**cursor)
        if place.file != file:
            raise TerminalError(f"{self.path} has changed since the run started; start a new run")
        try:
            with self.path.open("rb") as stream:
                return self._page(LineReader(stream, place), limit)
        except OSError as error:
            raise UsageError(f"source.file: {self.path}: {error.strerror}") from error

    def _page(self, lines: "LineReader", limit: int) -> FilePage:
        records: list[Record] = []
        first = lines.offset
        try:
            for record in self._records_in(lines):
                records.append(record)
                if len(records) >= limit:
                    break
        except csv.Error as error:
            where = f"{self.path}: line {lines.line:,}"
            raise TerminalError(f"{where}: {error}; an earlier line may have an unclosed quote") from error
        place = FilePosition(lines.offset, lines.line, lines.file)
        return FilePage(records, place, lines.offset - first, lines.is_at_end())


class LineReader:
    """The lines of a file from a position on, with the position of the next line."""

    def __init__(self, stream: BinaryIO, place: FilePosition) -> None:
        self._stream = stream
        self.offset, self.line, self.file = place

    def from_the_top(self) -> "LineReader":
        return LineReader(self._stream, FilePosition(0, 0, self.file))

    def __iter__(self) -> Iterator[bytes]:
        self._stream.seek(self.offset)
        while line := self._stream.readline(LINE_BYTES_MAX):  # ends with the file
            if len(line) == LINE_BYTES_MAX:
                raise TerminalError(f"line {self.line + 1:,} is longer than {LINE_BYTES_MAX:,} bytes")
            self.offset += len(line)
            self.line += 1
            yield line.removeprefix(BOM) if self.line == 1 else line

    def is_at_end(self) -> bool:
        """Blank lines at the end of a file are not records."""
        self._stream.seek(self.offset)
        while line := self._stream.readline(LINE_BYTES_MAX):  # ends with the file
            if line.strip():
                return False
        return True


def json_records(lines: LineReader) -> Iterator[Record]:
    for line in lines:
        if line.strip():
            yield cast(Record, json_record(line))


def json_record(line: bytes) -> Any:
    """The parsed line, or the line itself."""
    try:
        return msgspec.json.decode(line)
    except (ValueError, RecursionError):
        try:
            return json.loads(line, parse_constant=str)
        except (ValueError, RecursionError):
            return line.decode("utf-8", "replace").rstrip("\r\n")


def csv_records(lines: LineReader) -> Iterator[Record]:
    is_first = lines.offset == 0
    names = next(fields_in(lines if is_first else lines.from_the_top()), [])
    check_names(names)
    for fields in fields_in(lines):
        if len(fields) == len(names):
            yield dict(zip(names, fields, strict=True))
        elif fields:
            yield cast(Record, ",".join(fields))


def fields_in(lines: LineReader) -> Iterator[list[str]]:
    # The default limit of the csv module, which applies to the whole process, is too small for polygons.
    csv.field_size_limit(max(csv.field_size_limit(), LINE_BYTES_MAX))
    # Invalid bytes become a bad row and do not end the file.
    return csv.reader((line.decode("utf-8", "surrogateescape") for line in lines), strict=True)


def check_names(names: list[str]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UsageError(f"source.file: two columns have the name {doubled[0]!r}; column names must be unique")
