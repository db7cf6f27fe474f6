"""Quotas: how much one tenant may keep in the store.

The service enforces them where jobs are submitted, cursors are stored and keys are created. A quota limits what is
added; deleting, cancelling and settling are always possible. Processes with direct access to the store have no quotas.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from leaseway.domain.errors import BadValue, QuotaExceeded
from leaseway.domain.health import render_bytes
from leaseway.domain.job import NewJob
from leaseway.domain.lane import LaneCount
from leaseway.domain.validators import check_int

QUOTA_MAX = 10**15
JOB_BYTES = 512
"""What a job takes in a store besides its texts, about."""
UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


class Quota(StrEnum):
    LANES = "lanes"
    UNFINISHED = "unfinished"
    BYTES = "bytes"
    KEYS = "keys"


WHAT = {
    Quota.LANES: "lanes",
    Quota.UNFINISHED: "unfinished jobs",
    Quota.BYTES: "stored bytes",
    Quota.KEYS: "live API keys",
}
WAY_OUT = {
    Quota.LANES: "use queues that have jobs already, or delete the jobs of others: a lane ends with its last job",
    Quota.UNFINISHED: "wait until jobs finish, or cancel some",
    Quota.BYTES: "discard finished jobs, or wait until they are pruned",
    Quota.KEYS: "revoke keys that are not used",
}


class Quotas(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The quotas of a tenant. Null: unlimited; omitted: the default of the service."""

    lanes: int | UnsetType | None = UNSET
    """Lanes: combinations of queue and required limits and budgets that have jobs."""
    unfinished: int | UnsetType | None = UNSET
    """Pending and leased jobs."""
    bytes: int | UnsetType | None = UNSET
    """The size of stored jobs: payload, cursor, progress, result and errors, and 512 bytes for each job."""
    keys: int | UnsetType | None = UNSET
    """API keys that are valid."""

    def get(self, quota: Quota) -> int | UnsetType | None:
        value: int | UnsetType | None = getattr(self, quota.value)
        return value

    def limit(self, quota: Quota) -> int | None:
        """None: unlimited."""
        value = self.get(quota)
        return None if isinstance(value, UnsetType) else value

    def with_defaults(self, defaults: "Quotas") -> "Quotas":
        missing = {quota.value: defaults.get(quota) for quota in Quota if self.get(quota) is UNSET}
        return replace(self, **missing)

    @property
    def is_set(self) -> bool:
        return any(self.get(quota) is not UNSET for quota in Quota)

    def __str__(self) -> str:
        given = {quota: self.get(quota) for quota in Quota}
        return ", ".join(f"{name} {render_limit(name, value)}" for name, value in given.items() if value is not UNSET)


NO_QUOTAS = Quotas()
DEFAULT_QUOTAS = Quotas(lanes=1_000, unfinished=100_000, bytes=1 << 30, keys=100)
"""For credentials that are limited to one tenant."""


class TenantUse(Struct, frozen=True):
    """What a tenant uses now."""

    lanes: int = 0
    unfinished: int = 0
    bytes: int = 0
    keys: int = 0


def measure_use(lanes: Sequence[LaneCount], keys: int = 0) -> TenantUse:
    return TenantUse(
        lanes=len(lanes),
        unfinished=sum(lane.unfinished for lane in lanes),
        bytes=sum(lane.bytes + lane.jobs * JOB_BYTES for lane in lanes),
        keys=keys,
    )


def job_bytes(job: NewJob) -> int:
    """The size of a job that is being submitted."""
    return JOB_BYTES + len(job.payload.encode()) + len((job.cursor or "").encode())


def exceeded(tenant: str, quota: Quota, limit: int, used: int, needed: int) -> QuotaExceeded:
    is_size = quota is Quota.BYTES
    text = [render_bytes(number) if is_size else f"{number:,}" for number in (used, limit, needed)]
    what = "bytes stored" if is_size else WHAT[quota]
    return QuotaExceeded(
        f"quota {quota}: tenant {tenant} has {text[0]} {what}, and its quota is {text[1]}; {text[2]} more would exceed "
        f"it. {WAY_OUT[quota][:1].upper()}{WAY_OUT[quota][1:]}, or ask the operator to raise it: "
        f"leaseway tenants set {tenant} --quota {quota}=N",
        quota=quota.value, limit=limit, used=used, needed=needed,
    )  # fmt: skip


def check_quotas(field: str, quotas: Quotas) -> Quotas:
    for quota in Quota:
        value = quotas.get(quota)
        if isinstance(value, int):
            check_int(f"{field}.{quota}", value, 0, QUOTA_MAX)
    return quotas


# -- as text --------------------------------------------------------------------------------------------------------


def parse_quotas(given: Iterable[str], before: Quotas = NO_QUOTAS) -> Quotas:
    """From texts such as "lanes=500", "bytes=2GiB", "keys=none" (unlimited) and "unfinished=default"."""
    changes: dict[str, int | UnsetType | None] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or name not in set(Quota):
            raise BadValue("quota", f"must be NAME=N with one of the names {', '.join(Quota)} (is {text!r})")
        changes[name] = parse_limit(Quota(name), value.strip().lower())
    return check_quotas("quota", replace(before, **changes))


def parse_limit(quota: Quota, text: str) -> int | UnsetType | None:
    words: Mapping[str, UnsetType | None] = {"none": None, "default": UNSET}
    if text in words:
        return words[text]
    digits = text.replace(",", "").replace("_", "").rstrip("kmgtib ")
    unit = text[len(text.rstrip("kmgtib ")) :].strip()
    if not (digits.isascii() and digits.isdigit()) or unit not in (UNITS if quota is Quota.BYTES else ("",)):
        example = "10GiB" if quota is Quota.BYTES else "500"
        raise BadValue(f"quota.{quota}", f"must be a number such as {example}, none or default (is {text!r})")
    return int(digits) * UNITS[unit]


def render_limit(quota: Quota, limit: int | UnsetType | None) -> str:
    if limit is None or isinstance(limit, UnsetType):
        return "none" if limit is None else "default"
    return render_bytes(limit) if quota is Quota.BYTES else f"{limit:,}"
