"""What every process records: one file per process, one line per event, read after the round.

Times are CLOCK_BOOTTIME: one clock for all processes of a machine, which cannot be set and advances while a process is
frozen. Intervals of different processes can therefore be compared.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, field

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    return time.clock_gettime(CLOCK)


class Record(Struct, frozen=True, kw_only=True, tag_field="event"):
    at: float = field(default_factory=now)


# -- submitters -----------------------------------------------------------------------------------------------------


class Submitting(Record, frozen=True, tag="submitting"):
    """A submission is sent. Each label stands for one job that must exist; a key makes the call repeatable."""

    call: str
    labels: list[str]
    kinds: list[str]
    key: str | None = None


class Acknowledged(Record, frozen=True, tag="acknowledged"):
    call: str
    jobs: list[str]


class Refused(Record, frozen=True, tag="refused"):
    """The store replied that nothing was written."""

    call: str
    error: str


class Unknown(Record, frozen=True, tag="unknown"):
    """The outcome is unknown, and the submitter has stopped repeating."""

    call: str
    error: str


class Cancelling(Record, frozen=True, tag="cancelling"):
    job: str


class Cancelled(Record, frozen=True, tag="cancelled"):
    job: str
    answer: str


# -- workers --------------------------------------------------------------------------------------------------------


class Granted(Struct, frozen=True):
    job: str
    token: str
    fence: int
    lease_seconds: float


class Settled(Struct, frozen=True):
    job: str
    token: str
    state: str
    sent: float
    """When it was sent for the first time; `at` is the time of the reply, perhaps after repetitions."""
    is_accepted: bool


class Exchanged(Record, frozen=True, tag="exchanged"):
    """The reply to an exchange."""

    sent: float
    """Before its first try was sent, if it was repeated."""
    granted: list[Granted] = []
    settled: list[Settled] = []
    is_repeat: bool = False


class Renewed(Record, frozen=True, tag="renewed"):
    sent: float
    kept: list[tuple[str, str]] = []
    """(job, token)"""
    lost: list[tuple[str, str]] = []


class Checkpointed(Record, frozen=True, tag="checkpointed"):
    """A cursor is sent. The line before the call has None for the reply; a second line has the reply."""

    job: str
    token: str
    cursor: int
    sent: float
    is_kept: bool | None = None


class Started(Record, frozen=True, tag="started"):
    job: str
    kind: str
    fence: int
    attempt: int
    cursor: int = 0


class Ended(Record, frozen=True, tag="ended"):
    """How: done, failed, snoozed, or stopped, which means that the worker told the handler to stop."""

    job: str
    fence: int
    how: str


class Heard(Record, frozen=True, tag="heard"):
    """An event that the worker emitted."""

    name: str
    facts: dict[str, str] = {}


class Loaded(Record, frozen=True, tag="loaded"):
    """The process has loaded its code and opens the store next."""


# -- the supervisor -------------------------------------------------------------------------------------------------


class ProcessStarted(Record, frozen=True, tag="process_started"):
    name: str
    role: str


class ProcessEnded(Record, frozen=True, tag="process_ended"):
    """`is_wanted`: the campaign killed it or asked it to exit."""

    name: str
    code: int
    is_wanted: bool


class FaultBegan(Record, frozen=True, tag="fault_began"):
    number: int
    fault: str
    hits: list[str]
    """The processes that the fault may affect."""
    what: str


class FaultEnded(Record, frozen=True, tag="fault_ended"):
    """The fault is healed."""

    number: int


class Drained(Record, frozen=True, tag="drained"):
    """After the last fault: whether every job ended, and how many did not."""

    left: int


AnyRecord = (
    Submitting
    | Acknowledged
    | Refused
    | Unknown
    | Cancelling
    | Cancelled
    | Exchanged
    | Renewed
    | Checkpointed
    | Started
    | Ended
    | Heard
    | Loaded
    | ProcessStarted
    | ProcessEnded
    | FaultBegan
    | FaultEnded
    | Drained
)
Line = tuple[str, AnyRecord]
"""The process and its event."""

DECODER: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)
ENCODER = msgspec.json.Encoder()


class Journal:
    """One process's part of the history. A line is one write, so that a kill leaves complete lines."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, record: Record) -> None:
        os.write(self._file, ENCODER.encode(record) + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(folder: Path) -> Iterator[Line]:
    """All recorded events, process by process."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield path.stem, DECODER.decode(line)
