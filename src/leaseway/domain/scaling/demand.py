"""How many workers the load of a pool needs: observation, settings ─► [demand ─► bounds] ─► workers wanted

Little's law turns arrivals and service times into busy slots. What limits, budgets, caps and pauses do not admit is
left out, so no worker is started that could only wait for a permit.
"""

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.domain.validators import check_int

WORKERS_MAX = 10_000
SECONDS_MAX = 86_400.0
SERVICE_SECONDS_MIN = 0.001
"""A shorter service time would be an error of measurement."""
ROUNDING = 1e-9
"""Sums of floats that exceed a whole number by less do not need one more worker."""


class AdmissionBound(Struct, frozen=True, kw_only=True):
    """A limit, budget, tenant cap or pause that bounds how many jobs of some groups start."""

    what: str
    """limit, budget, tenant or lane"""
    name: str
    starts_per_second: float = math.inf
    """For jobs that cost one permit. 0: spent or paused."""
    at_once: float = math.inf
    """How many jobs may run at the same time."""
    is_spent: bool = False
    """No permit is left at this moment."""
    fed_slots: float = math.inf
    """How many slots all of its permits kept busy lately. Infinite if some were left: more slots may use them."""

    def __str__(self) -> str:
        return f"{self.what} {self.name}"


class WorkGroup(Struct, frozen=True, kw_only=True):
    """Jobs that wait behind the same gate."""

    ready: int = 0
    running: int = 0
    arrivals_per_second: float = 0.0
    service_seconds: float = 1.0
    costs: Mapping[str, float] = field(default_factory=dict)
    """By the text of each bound that applies: how many of its permits a job uses."""


class PoolObservation(Struct, frozen=True, kw_only=True):
    """One snapshot of a pool. `at` is in seconds, on the same clock for all observations."""

    at: float
    groups: Sequence[WorkGroup] = ()
    bounds: Mapping[str, AdmissionBound] = field(default_factory=dict)
    """By their texts."""
    scheduled: int = 0
    """Jobs and schedules that a worker must start when their time comes."""
    finished_per_second: float = 0.0
    slots_per_worker: int = 1
    workers: int = 0
    """Live or starting; workers that drain are not counted."""
    age_seconds: float = 0.0
    """How long ago the store was read."""

    @property
    def ready(self) -> int:
        return sum(group.ready for group in self.groups)

    @property
    def running(self) -> int:
        return sum(group.running for group in self.groups)


class ScalingSettings(Struct, frozen=True, kw_only=True):
    workers_min: int = 1
    workers_max: int = 8
    wait_seconds: float = 10.0
    """How long jobs may wait for a worker. A backlog is to be worked off within this time."""
    utilisation: float = 0.8
    """The part of the slots that should be busy. The rest absorbs chance."""
    lead_seconds: float = 60.0
    """How far ahead to provide: the start of a worker, and the time between two decisions."""
    up_tolerance: float = 0.1
    down_tolerance: float = 0.2
    up_step_workers: int = 4
    up_step_ratio: float = 1.0
    """A step up adds this many workers, or this part of the fleet, whichever is more."""
    down_step_ratio: float = 0.25
    step_seconds: float = 15.0
    """The time between two steps in the same direction."""
    down_window_seconds: float = 180.0
    """The fleet shrinks to the largest number of workers that was needed within this time."""
    idle_seconds: float = 300.0
    """How long a pool must have had no work before its last worker ends."""
    stale_seconds: float = 60.0
    """Older observations change nothing."""
    benefit_ratio: float = 0.25
    """Twice the workers must raise the throughput by this part at least, or growth is frozen."""
    benefit_seconds: float = 90.0
    """How long after the last step up they may take to."""
    freeze_seconds: float = 300.0


def check_scaling(settings: ScalingSettings) -> ScalingSettings:
    """Refuse settings that contradict each other. The error names the field."""
    check_int("max", settings.workers_max, 1, WORKERS_MAX)
    check_int("min", settings.workers_min, 0, WORKERS_MAX)
    if settings.workers_min > settings.workers_max:
        raise BadValue("min", f"must not exceed max (is {settings.workers_min}, max is {settings.workers_max})")
    check_int("up_step_workers", settings.up_step_workers, 1, WORKERS_MAX)
    check_between("utilisation", settings.utilisation, 0.05, 1.0)
    check_between("wait_seconds", settings.wait_seconds, 0.1, SECONDS_MAX)
    for name in ("lead", "step", "down_window", "idle", "stale", "benefit", "freeze"):
        check_between(f"{name}_seconds", getattr(settings, f"{name}_seconds"), 0.0, SECONDS_MAX)
    for name in ("up_tolerance", "down_tolerance", "up_step_ratio", "benefit_ratio"):
        check_between(name, getattr(settings, name), 0.0, 10.0)
    check_between("down_step_ratio", settings.down_step_ratio, 0.01, 1.0)
    return settings


def check_between(name: str, value: object, least: float, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # type: ignore[operator]
        raise BadValue(name, f"must be a number from {least:g} to {most:,g} (is {value!r})")


# -- demand ----------------------------------------------------------------------------------------------------------


class BusySlots(Struct, frozen=True):
    """How many slots can be busy."""

    slots: float
    still_running: float
    """Those of them whose long jobs run on: they need no room for chance."""
    binding: AdmissionBound | None = None
    """The bound that keeps most slots idle."""


def slots_asked(group: WorkGroup, settings: ScalingSettings) -> float:
    """Slots for the jobs that arrive, and for a backlog that is to be worked off within the target.

    Jobs that take longer than the target keep their slots, and one job never needs more than one slot. A burst of long
    jobs therefore asks for as many slots as there are jobs, not for what the rate of the burst would need if it lasted.
    """
    arrivals, service = group.arrivals_per_second, max(group.service_seconds, SERVICE_SECONDS_MIN)
    steady = min(arrivals * service, group.running + arrivals * settings.lead_seconds)
    backlog = group.ready * min(1.0, service / settings.wait_seconds)
    return max(steady, slots_kept(group, settings)) + backlog


def slots_kept(group: WorkGroup, settings: ScalingSettings) -> float:
    """Slots of running jobs that are still running when the target is reached."""
    return group.running * max(0.0, 1 - settings.wait_seconds / max(group.service_seconds, SERVICE_SECONDS_MIN))


def fill_slots(seen: PoolObservation, settings: ScalingSettings) -> BusySlots:
    """What the bounds admit. Groups that share a bound are filled by the slots that one of its permits keeps busy, the
    most first: the sum is as large as any order of starts can make it, if bounds are nested, and more jobs never give a
    smaller sum."""
    # Slots that wait for permits need no room for chance.
    left = {
        text: replace(each, fed_slots=slots_fed(seen, each) * settings.utilisation)
        for text, each in seen.bounds.items()
    }
    filled, idle = 0.0, dict[str, float]()
    for group in sorted(seen.groups, key=slots_per_permit, reverse=True):
        wanted, most = slots_asked(group, settings), slots_admitted(group, left, seen.bounds, settings)
        busy = min([wanted, *most.values()])
        left |= {text: use_slots(left[text], group, cost, busy) for text, cost in group.costs.items()}
        if busy < wanted - ROUNDING:
            tightest = min(most, key=most.__getitem__)
            idle[tightest] = idle.get(tightest, 0.0) + wanted - busy
        filled += busy
    kept = min(filled, sum(slots_kept(group, settings) for group in seen.groups))
    binding = max(idle, key=idle.__getitem__, default=None)
    return BusySlots(filled, kept, None if binding is None else seen.bounds[binding])


def slots_fed(seen: PoolObservation, bound: AdmissionBound) -> float:
    """The slots that a used-up bound feeds: at most those of the running workers. The count itself can be higher,
    because leases of a killed worker count as busy until they expire."""
    if math.isinf(bound.fed_slots) or not seen.workers:
        return bound.fed_slots
    return min(bound.fed_slots, float(seen.workers * seen.slots_per_worker))


def slots_admitted(
    group: WorkGroup,
    left: Mapping[str, AdmissionBound],
    bounds: Mapping[str, AdmissionBound],
    settings: ScalingSettings,
) -> dict[str, float]:
    """By bound: the slots that it can keep busy in the long run with what others left, and that it can fill soon."""
    service = max(group.service_seconds, SERVICE_SECONDS_MIN)
    return {
        text: min(
            left[text].starts_per_second * service / cost,
            left[text].at_once,
            left[text].fed_slots,
            group.running + bounds[text].starts_per_second * settings.lead_seconds / cost,
        )
        for text, cost in group.costs.items()
    }


def use_slots(bound: AdmissionBound, group: WorkGroup, cost: float, busy: float) -> AdmissionBound:
    """What a group leaves of a bound."""
    starts_per_second = busy * cost / max(group.service_seconds, SERVICE_SECONDS_MIN)
    return replace(
        bound,
        starts_per_second=max(0.0, bound.starts_per_second - starts_per_second),
        at_once=max(0.0, bound.at_once - busy),
        fed_slots=max(0.0, bound.fed_slots - busy),
    )


def slots_per_permit(group: WorkGroup) -> float:
    return max(group.service_seconds, SERVICE_SECONDS_MIN) / max(group.costs.values(), default=1.0)


def workers_wanted(seen: PoolObservation, settings: ScalingSettings) -> tuple[int, BusySlots]:
    """Workers for the busy slots; as many as run jobs now are kept, and one for any work that can start."""
    busy = fill_slots(seen, settings)
    slots = busy.still_running + (busy.slots - busy.still_running) / settings.utilisation
    needed = math.ceil(slots / seen.slots_per_worker - ROUNDING)
    kept = min(math.ceil(seen.running / seen.slots_per_worker), seen.workers)
    least = 1 if seen.running or seen.scheduled or busy.slots > 0 else 0
    return max(needed, kept, least), busy
