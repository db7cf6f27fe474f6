"""Health checks: facts in, findings with advice out (`leaseway doctor`).

Stores collect the facts and this module judges them, so that every store gives the same findings.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from enum import StrEnum

from msgspec import Struct

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.lane import LaneCount, Pause, covering_pause
from leaseway.domain.workers import StoredWorker

GIB = 1 << 30
DISK_FREE_MIN = GIB
DISK_FREE_SHARE_MIN = 0.1
LOG_BYTES_MAX = GIB
CLOCK_US_MAX = 5 * SECOND_US
"""A stored time may be this far in the future before the clock is reported as wrong."""
STUCK_US_MAX = 60 * SECOND_US
WAITING_US_MAX = 600 * SECOND_US
SERVED_US_MAX = 60 * SECOND_US
"""A queue counts as served if a worker claimed from it within this time."""


class FindingLevel(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Struct, frozen=True):
    """The result of one check."""

    check: str
    level: FindingLevel
    text: str
    advice: str | None = None


def ok(check: str, text: str, advice: str | None = None) -> Finding:
    return Finding(check, FindingLevel.OK, text, advice)


def warning(check: str, text: str, advice: str) -> Finding:
    return Finding(check, FindingLevel.WARNING, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    return Finding(check, FindingLevel.PROBLEM, text, advice)


def judge_disk(free: int, total: int, stored: int) -> Finding:
    """`stored`: the size of the store. A copy or a compaction needs the same space again."""
    text = f"{render_bytes(free)} of {render_bytes(total)} free; the store uses {render_bytes(stored)}"
    if free < DISK_FREE_MIN or free < total * DISK_FREE_SHARE_MIN or free < stored:
        return warning("disk", text, "Free some space, or prune finished jobs: leaseway jobs prune --older-than 7d")
    return ok("disk", text)


def judge_log(size: int) -> Finding:
    text = f"the write-ahead log has {render_bytes(size)}"
    if size > LOG_BYTES_MAX:
        return warning(
            "log", text, "A long read transaction keeps the log from shrinking. Find the process and restart it"
        )
    return ok("log", text)


def judge_clock(newest: Instant | None, now: Instant) -> Finding:
    """`newest`: the latest time that the store wrote."""
    if newest is None or newest <= now + CLOCK_US_MAX:
        return ok("clock", "no stored time is in the future")
    text = f"the newest stored time is {render_duration(newest - now)} in the future: the clock was set back"
    advice = "Correct the clock (is NTP running?). A step of up to an hour is made up for; after a longer one, leases, "
    return problem(
        "clock", text, advice + "retries and limits that were stamped before wait until the clock gets there"
    )


def judge_leases(leased: int, stuck: int, oldest: Instant | None, now: Instant) -> Finding:
    """`stuck`: leases that expired more than STUCK_US_MAX ago."""
    if not stuck or oldest is None:
        return ok("leases", f"{leased:,} held, none is stuck")
    text = f"{stuck:,} expired, the oldest {render_duration(now - oldest)} ago, and were not reclaimed"
    return problem("leases", text, "No worker is running. Start one, of any queue: leaseway work MODULE:APP")


class WaitCauses(Struct, frozen=True):
    """What is known about why queues wait."""

    present: Set[str] = frozenset()
    """Queues of workers that are alive, also if they claim nothing."""
    paused: Set[str] = frozenset()
    """Queues of which all lanes with ready jobs are paused."""
    closed: Mapping[str, str] = {}
    """By queue of which all lanes with ready jobs are paused or closed: why one of them is closed."""


def find_causes(lanes: Iterable[LaneCount], pauses: Sequence[Pause], workers: Iterable[StoredWorker]) -> WaitCauses:
    waiting: dict[str, list[LaneCount]] = {}
    for lane in lanes:
        if lane.ready:
            waiting.setdefault(lane.queue, []).append(lane)
    paused, closed = set[str](), dict[str, str]()
    for queue, each in waiting.items():
        open_lanes = [lane for lane in each if covering_pause(queue, lane.tenant, pauses) is None]
        whys = [lane.closed_why or "a limit or a budget" for lane in open_lanes if lane.closed_until is not None]
        if not open_lanes:
            paused.add(queue)
        elif len(whys) == len(open_lanes):
            closed[queue] = whys[0]
    present = {queue for worker in workers if worker.is_present for queue in worker.beat.queues}
    return WaitCauses(present, paused, closed)


NOTHING_KNOWN = WaitCauses()


def judge_waiting(
    oldest: Mapping[str, Instant], served: Mapping[str, Instant], now: Instant, causes: WaitCauses = NOTHING_KNOWN
) -> list[Finding]:
    """`oldest`: by queue, when its first ready job became ready. `served`: by queue, the time of the last claim."""
    late = {queue: at for queue, at in oldest.items() if now - at > WAITING_US_MAX}
    if not late:
        return [ok("waiting", f"no job has been ready for more than {render_duration(WAITING_US_MAX)}")]
    has_worker = {queue for queue in late if now - served.get(queue, 0) <= SERVED_US_MAX} | causes.present
    return [_late(queue, now - at, queue in has_worker, causes) for queue, at in late.items()]


def _late(queue: str, waited_us: int, has_worker: bool, causes: WaitCauses) -> Finding:
    text = f"queue {queue!r}: a job has been ready for {render_duration(waited_us)}"
    if queue in causes.paused:
        return warning("waiting", f"{text}; it is paused", f"Resume it: leaseway lanes resume {queue}")
    if has_worker and queue in causes.closed:
        why = f"{text}; its workers wait: {causes.closed[queue]}"
        return warning(
            "waiting", why, "Look: leaseway lanes. Then raise or resume the limit or the budget that is named"
        )
    if has_worker:
        return warning(
            "waiting", f"{text}; its workers cannot keep up", "Start more workers, or raise their --concurrency"
        )
    return warning("waiting", f"{text}; no worker serves it", f"Start one: leaseway work MODULE:APP --queue {queue}")


def judge_failed(lanes: list[LaneCount]) -> Finding:
    failed = sum(lane.failed for lane in lanes)
    if not failed:
        return ok("failed", "no dead letters")
    text = f"{failed:,} dead {'letter' if failed == 1 else 'letters'}"
    return warning("failed", text, "Look: leaseway jobs list --state failed. Then: leaseway jobs retry or discard")


def judge_counters(counted: list[LaneCount], recounted: list[LaneCount]) -> Finding:
    """Compare the counters of lanes with counted rows. Both lists contain every lane."""
    truth = {(lane.queue, lane.tenant, lane.needs): lane for lane in recounted}
    wrong = [lane for lane in counted if lane != truth.get((lane.queue, lane.tenant, lane.needs))]
    if not wrong:
        return ok("counters", f"{len(counted):,} lanes have correct counters")
    named = ", ".join(f"{lane.queue}/{lane.tenant}" for lane in wrong[:3])
    text = f"{len(wrong):,} of {len(counted):,} lanes have wrong counters: {named}"
    return problem("counters", text, "This is a bug in leaseway or a disk error. Report it with this output")


def render_duration(us: int) -> str:
    """A duration as one number and one unit."""
    seconds = abs(us) // SECOND_US
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,} {unit}"
    return f"{seconds} s"


def render_bytes(size: int) -> str:
    for unit, length in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= length:
            return f"{size / length:.1f} {unit}"
    return f"{size} bytes"
