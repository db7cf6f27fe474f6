"""The change log: which events a subscriber misses, computed without a service."""

import json
from typing import Any

import pytest

from leaseway.api.live.change_log import (
    JOBS_KEPT,
    MARGIN_US,
    SNAPSHOT_LANES,
    ChangeLog,
    EventBatch,
    Observation,
    PollResult,
    View,
)
from leaseway.api.settings import FRAME_BYTES_MAX

ALL = View(None, is_operator=True)
ACME = View("acme")
LANES = frozenset({"lane"})
NOW = 1_700_000_000_000_000


def lane(name: str, ready: int = 0, tenant: str = "acme") -> Observation:
    return Observation("lane", name, tenant, {"queue": name, "ready": ready})


def job(name: str, state: str = "pending", tenant: str = "acme") -> Observation:
    return Observation("job", name, tenant, {"id": name, "state": state})


def told(batch: EventBatch) -> list[Any]:
    """Kind and value of each event."""
    events = [json.loads(body) for body in batch.bodies]
    return [
        (event["kind"], *event.get(event["kind"], {}).values(), *(["gone"] if "gone" in event else []))
        for event in events
    ]


def test_what_did_not_change_is_not_told_again() -> None:
    """Most items do not change between polls; sending them again would cost every subscriber, five times a second."""
    log = ChangeLog()
    assert log.record(PollResult(NOW, [lane("a", 1), lane("b", 1)], LANES))
    first = log.since(ACME, None)
    assert told(first) == [("reset",), ("lane", "a", 1), ("lane", "b", 1)]
    assert not log.record(PollResult(NOW + 1, [lane("a", 1), lane("b", 1)], LANES))
    assert log.since(ACME, first.seq).frames == ()
    assert log.record(PollResult(NOW + 2, [lane("a", 2), lane("b", 1)], LANES))
    assert told(log.since(ACME, first.seq)) == [("lane", "a", 2)]


@pytest.mark.parametrize("name", ["b", "\ud800", "\0"])
def test_what_cannot_be_shown_is_told_and_does_not_hide_the_rest(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """One value of one tenant could otherwise end the stream of all subscribers. It must be logged once, not with every
    poll.
    """
    log = ChangeLog()
    broken = [Observation("job", name, "acme", 1, lambda _: "\ud800"), Observation("job", "d", "acme", 1, fail)]
    for n in range(3):
        log.record(PollResult(NOW + n, [job("a"), *broken, job("c")]))
    shown = [("unreadable", "job", ascii(name)[1:-1]), ("unreadable", "job", "d")]
    assert told(log.since(ACME, None)) == [("reset",), ("job", "a", "pending"), *shown, ("job", "c", "pending")]
    assert len(caplog.records) == 2
    log.record(PollResult(NOW + 9, [], missing=[name]))
    assert told(log.since(ACME, NOW + 2)) == [("unreadable", "job", ascii(name)[1:-1], "gone")]


def fail(_: object) -> Any:
    raise RecursionError("too deep")


def test_what_is_gone_is_told_and_what_comes_again_too() -> None:
    """A deleted limit must disappear from the dashboard, and a snapshot does not mention it."""
    log = ChangeLog()
    log.record(PollResult(NOW, [lane("a"), lane("b")], LANES))
    seq = log.since(ACME, None).seq
    log.record(PollResult(NOW + 1, [lane("a")], LANES))
    assert told(log.since(ACME, seq)) == [("lane", "b", 0, "gone")]
    assert told(log.since(ACME, None)) == [("reset",), ("lane", "a", 0)]
    log.record(PollResult(NOW + 2, [lane("a"), lane("b")], LANES))
    assert told(log.since(ACME, seq)) == [("lane", "b", 0)]


def test_jobs_that_are_not_seen_in_passing_are_not_gone() -> None:
    """A poll returns the newest jobs only. A job is gone only if it was requested and not found."""
    log = ChangeLog()
    log.record(PollResult(NOW, [job("1"), job("2")]))
    seq = log.seq
    assert not log.record(PollResult(NOW + 1, [job("2")], missing=["3"]))
    log.record(PollResult(NOW + 2, [], missing=["1"]))
    assert told(log.since(ACME, seq)) == [("job", "1", "pending", "gone")]


def test_numbers_only_grow() -> None:
    """The store's clock may step back, and a subscriber with a given number must not miss events."""
    log = ChangeLog()
    for now in (NOW, NOW - 5_000_000, NOW - 5_000_000, NOW + 1):
        before = log.seq
        log.record(PollResult(now, []))
        assert log.seq > before


@pytest.mark.parametrize("early_us", [0, MARGIN_US])
def test_the_number_of_another_process_misses_nothing(early_us: int) -> None:
    """The other process may have polled slightly earlier and used a later number, so changes around that time are sent
    again.
    """
    log = ChangeLog()
    log.record(PollResult(NOW, [lane("a", 1), lane("b", 1)], LANES))
    later = NOW + 10 * MARGIN_US
    log.record(PollResult(later, [lane("a", 2), lane("b", 1)], LANES))
    log.record(PollResult(later + 3 * MARGIN_US, [lane("a", 2), lane("b", 2)], LANES))
    foreign = later + MARGIN_US - early_us + 1
    assert told(log.since(ACME, foreign)) == ([("lane", "a", 2)] if early_us else []) + [("lane", "b", 2)]


def test_a_look_that_took_too_long_is_no_ground_for_others() -> None:
    """The margin covers only polls that are shorter than the margin."""
    log = ChangeLog()
    log.record(PollResult(NOW, [lane("a", 1)], LANES))
    log.record(PollResult(NOW + 10 * MARGIN_US, [lane("a", 2)], LANES, is_late=True))
    own = log.seq
    assert told(log.since(ACME, NOW + 5 * MARGIN_US))[0] == ("reset",)
    assert told(log.since(ACME, own)) == []


def test_who_was_told_before_something_was_forgotten_gets_everything() -> None:
    """The change log is bounded. A subscriber that missed an event must get a full snapshot."""
    log = ChangeLog()
    log.record(PollResult(NOW, [job("0")]))
    seq = log.seq
    log.record(PollResult(NOW + 1, [job(str(number)) for number in range(1, JOBS_KEPT)]))
    assert told(log.since(ACME, seq))[0] != ("reset",)
    log.record(PollResult(NOW + 2, [job("one more")]))
    assert told(log.since(ACME, seq))[0] != ("reset",)
    log.record(PollResult(NOW + 3, [job("and one more")]))
    assert told(log.since(ACME, seq))[0] == ("reset",)


def test_everybody_sees_his_own() -> None:
    """Tenants must see only their own lanes, jobs and totals; operators see all lanes and jobs, one total, and shared
    items.
    """
    log = ChangeLog()
    seen = [
        lane("a"), lane("b", tenant="other"), job("1"), job("2", tenant="other"),
        Observation("limit", "maps", None, {"name": "maps"}), Observation("totals", "", None, {"ready": 3}),
        Observation("totals", "acme", "acme", {"ready": 1}),
    ]  # fmt: skip
    log.record(PollResult(NOW, seen))
    assert sorted(told(log.since(ACME, None))) == [
        ("job", "1", "pending"), ("lane", "a", 0), ("reset",), ("totals", 1),
    ]  # fmt: skip
    assert sorted(told(log.since(ALL, None))) == [
        ("job", "1", "pending"), ("job", "2", "pending"), ("lane", "a", 0), ("lane", "b", 0),
        ("limit", "maps"), ("reset",), ("totals", 3),
    ]  # fmt: skip
    log.record(
        PollResult(NOW + 1, [lane("b", 7, tenant="other"), Observation("limit", "maps", None, {"name": "other"})])
    )
    assert told(log.since(ACME, NOW)) == []


def test_a_snapshot_is_bounded_and_large_ones_come_in_parts() -> None:
    """Only the last part has the number, so that a client that is disconnected before it gets the whole
    snapshot again.
    """
    log = ChangeLog()
    wide = "x" * 1_000
    log.record(PollResult(NOW, [lane(f"{number} {wide}") for number in range(SNAPSHOT_LANES + 100)], LANES))
    batch = log.since(ALL, None)
    assert len(batch.bodies) == 1 + SNAPSHOT_LANES
    frames = [json.loads(frame) for frame in batch.frames]
    assert len(frames) > 2
    assert [frame["seq"] for frame in frames] == [None] * (len(frames) - 1) + [NOW]
    assert max(map(len, batch.frames)) < FRAME_BYTES_MAX + 2_000
    assert [event for frame in frames for event in frame["events"]] == [json.loads(body) for body in batch.bodies]
