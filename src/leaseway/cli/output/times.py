"""Instants and durations for people: relative, and in local time. JSON has its own format."""

from datetime import UTC, datetime

from leaseway.domain.health import render_duration
from leaseway.domain.ids import SECOND_US, Instant


def local(instant: Instant) -> str:
    try:
        return datetime.fromtimestamp(instant // SECOND_US, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "out of range"


def short(instant: Instant, now: Instant) -> str:
    """The time if it is today, else the date."""
    text, today = local(instant), local(now)[:10]
    return text[11:] if text.startswith(today) else text[:10]


def relative(instant: Instant, now: Instant) -> str:
    if abs(instant - now) < SECOND_US:
        return "now"
    return f"in {render_duration(instant - now)}" if instant > now else f"{render_duration(now - instant)} ago"


def moment(instant: Instant | None, now: Instant) -> str:
    """Empty for None."""
    return "" if instant is None else f"{relative(instant, now)} ({local(instant)})"


def span(us: int) -> str:
    """A duration as short as those of limits: 0.62 s, 12 s, 3 min."""
    if us >= 10 * SECOND_US:
        return render_duration(us)
    return f"{us / SECOND_US:.3g} s" if us >= SECOND_US // 1_000 else f"{us / 1_000:.3g} ms"
