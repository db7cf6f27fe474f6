"""What a submission may say about its job besides the arguments."""

from typing import Any

from msgspec import Struct

from leaseway.domain import payload
from leaseway.domain.errors import BadValue
from leaseway.domain.ids import Instant
from leaseway.domain.job import PRIORITY_MAX
from leaseway.domain.kind import SUBMIT_OPTIONS
from leaseway.domain.validators import check_int, check_name, parse_duration_us, parse_instant

ATTEMPTS_MAX = 1_000
LEASE_SECONDS_MIN = 1
LEASE_SECONDS_MAX = 86_400


class JobOptions(Struct, frozen=True, kw_only=True):
    """Checked values; None: the kind's default."""

    key: str | None = None
    tenant: str | None = None
    queue: str | None = None
    priority: int | None = None
    run_at: Instant | None = None
    delay_us: int = 0
    attempts: int | None = None
    timeout_us: int | None = None
    cursor: str | None = None
    shard_key: str | None = None


NO_OPTIONS = JobOptions()


def parse_options(given: dict[str, Any]) -> JobOptions:
    """Check what a caller wrote; every error names its option."""
    if not given:
        return NO_OPTIONS
    for name in given:
        if name not in SUBMIT_OPTIONS:
            raise BadValue(name, f"is no option of submit(); there are {', '.join(sorted(SUBMIT_OPTIONS))}")
    if given.get("run_at") is not None and given.get("delay") is not None:
        raise BadValue("delay", "cannot be given together with run_at")
    checked = {name: CHECKS[name](name, value) for name, value in given.items() if value is not None}
    if "delay" in checked:
        checked["delay_us"] = checked.pop("delay")
    if "timeout" in checked:
        checked["timeout_us"] = checked.pop("timeout")
    return JobOptions(**checked)


def check_attempts(field: str, value: object) -> int:
    return check_int(field, value, 1, ATTEMPTS_MAX)


def check_priority(field: str, value: object) -> int:
    return check_int(field, value, -PRIORITY_MAX, PRIORITY_MAX)


def parse_timeout_us(field: str, value: object) -> int:
    return parse_duration_us(field, value, least=0.001)


def parse_lease_us(field: str, value: object) -> int:
    return parse_duration_us(field, value, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX)


def encode_cursor(field: str, value: object) -> str:
    return payload.encode(value, field)


CHECKS: dict[str, Any] = {
    "key": check_name,
    "tenant": check_name,
    "queue": check_name,
    "shard_key": check_name,
    "priority": check_priority,
    "run_at": parse_instant,
    "delay": parse_duration_us,
    "attempts": check_attempts,
    "timeout": parse_timeout_us,
    "cursor": encode_cursor,
}
