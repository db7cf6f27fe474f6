"""Limits in PostgreSQL. Each method is one call of a function of the schema: one transaction, one round trip.

The functions implement `domain.limits.buckets` with the server's clock, which they read after taking their locks. The
use of limits is in tables that a crash or a promotion empties, so that lost state is detected; limits then count as
used up.

`now_us` is for tests that move time: its value is then sent along as the instant.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from leaseway.domain.errors import StoreRefused, UnknownLimit
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.inspection import only_usable
from leaseway.domain.limits import breaker, buckets
from leaseway.domain.limits.buckets import RATE_USED, Granted, Never, Notice, Verdict, Wait
from leaseway.domain.limits.level import Breaker, Bucket, InFlight, Level, Use
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, check_limit, size_limit
from leaseway.domain.limits.validation import (
    check_acquire,
    check_ended,
    check_in_flight,
    check_notice,
    check_requests,
    check_unused,
)
from leaseway.ports.limiter import LimitDefinitions
from leaseway.stores.postgres.connection import Record
from leaseway.stores.postgres.database import Database
from leaseway.stores.postgres.rows import encode_json
from leaseway.stores.postgres.schema import migrate, refuse_read_only

SPECIAL_REASONS = {-2: buckets.PAUSED, -3: breaker.OPEN, -4: breaker.PROBED}
"""By the window that the server reports instead of one."""


class PostgresLimitDefinitions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._declared: dict[str, LimitDefinition] = {}
        self._since: Instant | None = None
        """The fence under which the server knows the limits that this process has declared."""

    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        last = {definition.name: render_definition(definition) for definition in definitions}
        ((since,),) = await self._database.call("declare_limits", encode_json(list(last.values())), self._database.at())
        self._declared |= {definition.name: definition for definition in definitions}
        self._since = since

    async def declare_again(self) -> bool:
        """Declare again if the server has lost declarations, as a promoted replica may."""
        if not self._declared or await self._database.read("limiter_fence") == [(self._since,)]:
            return False
        await self.declare(list(self._declared.values()))
        return True

    async def change(self, definition: LimitDefinition, *, expected: int | None = None) -> int:
        sent = encode_json(render_definition(definition))
        ((version,),) = await self._database.call("change_limit", sent, expected, self._database.at())
        return int(version)

    async def all(self) -> list[tuple[LimitDefinition, int]]:
        found = await self._database.read("list_limits")
        return only_usable(found, lambda row: (check_limit(msgspec.json.decode(row[0], type=LimitDefinition)), row[1]))

    async def forget(self, name: str) -> bool:
        ((was_known,),) = await self._database.call("forget_limit", name)
        return bool(was_known)


class PostgresLimiter:
    """Has connections of its own, so that calls waiting for a limit's row do not delay jobs.

    If a reply is lost, the call is not repeated: permits that may have been acquired are used, and permits that may
    have been returned are gone.
    """

    def __init__(self, url: str, now_us: Callable[[], Instant] | None = None) -> None:
        self._database = Database(url, now_us)
        self.address = self._database.address
        self.connections = self._database.connections
        self._definitions = PostgresLimitDefinitions(self._database)
        self.definitions: LimitDefinitions = self._definitions

    async def open(self) -> None:
        await migrate(self.connections)
        async with self.connections.borrow() as connection:
            await refuse_read_only(connection, self.address)
            for (table,) in await connection.fetch(self._database.sql["logged_limiter_tables"], self.address.quoted):
                raise StoreRefused(
                    f"{self.address.shown}: table {table!r} must be UNLOGGED, or a promoted replica uses old limits; "
                    f"repair it: ALTER TABLE {self.address.schema}.{table} SET UNLOGGED"
                )

    async def close(self) -> None:
        await self.connections.close()

    async def acquire(
        self, asks: Sequence[PermitRequest], *, least: int = 1, most: int = 1, holder: str = "", in_flight_us: int = 0
    ) -> Verdict:
        check_acquire(asks, least, most, in_flight_us)
        given = (*limit_names(asks), [ask.cost for ask in asks], least, most, holder, in_flight_us, self._database.at())
        try:
            (answer,) = await self._database.call("take_permits", *given)
        except UnknownLimit:  # no permit was taken
            if not await self._definitions.declare_again():
                raise
            (answer,) = await self._database.call("take_permits", *given)
        return parse_verdict(asks, answer)

    async def return_unused(self, granted: Granted, unused: int) -> None:
        check_unused(granted, unused)
        costs = [ask.cost for ask in granted.asks]
        when = (granted.granted_at, granted.since, granted.generations)
        await self._database.call(
            "return_permits", *limit_names(granted.asks), costs, unused, *when, self._database.at()
        )

    async def end_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, used: Sequence[int] = ()) -> None:
        check_ended(asks, holder, count, used)
        given = (*limit_names(asks), [ask.cost for ask in asks], holder, count, list(used))
        await self._database.call("end_calls", *given, self._database.at())

    async def renew_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, in_flight_us: int) -> None:
        check_in_flight(asks, holder, count, in_flight_us)
        given = (*limit_names(asks), [ask.cost for ask in asks], holder, count, in_flight_us)
        await self._database.call("renew_calls", *given, self._database.at())

    async def observe(self, notice: Notice) -> None:
        check_notice(notice)
        about = (notice.name, notice.limit, notice.generation, notice.throttled)
        sent = (notice.retry_after_us, notice.remaining, notice.reset_us)
        call = (notice.circuit, notice.failed, notice.answered)
        await self._database.call("apply_notice", *about, *sent, *call, self._database.at())

    async def levels(self, asks: Sequence[PermitRequest]) -> tuple[Instant, list[Level]]:
        check_requests(asks)
        found = await self._database.read("read_levels", *limit_names(asks), self._database.at())
        return found[0][0], [parse_level(row) for row in found]


def limit_names(asks: Sequence[PermitRequest]) -> tuple[list[str], list[str]]:
    return [ask.name for ask in asks], [ask.limit for ask in asks]


def render_definition(definition: LimitDefinition) -> dict[str, Any]:
    """A definition for the server. Defaults are left out, so that a version with more fields declares the same."""
    sizing = size_limit(check_limit(definition))
    defaults = {field.name: field.default for field in msgspec.structs.fields(LimitDefinition)}
    sent = {name: value for name, value in msgspec.structs.asdict(definition).items() if value != defaults[name]}
    return {
        "name": definition.name,
        "definition": sent,
        "windows": [window.window_us for window in sizing.windows],
        "bursts": [window.burst for window in sizing.windows],
        "paces": [window.permit_ns for window in sizing.windows],
        "concurrency": sizing.concurrency,
        "lease_us": sizing.lease_us,
        "is_metered": sizing.is_metered,
        "breaker": sizing.breaker,
    }


def parse_verdict(asks: Sequence[PermitRequest], row: Record) -> Verdict:
    answer, count, granted_at, since, lease_us, generations, circuits, watched, place, wait_us, window_us, most = row
    match answer:
        case "granted":
            told = tuple(generations), tuple(circuits or ()), tuple(watched or ())
            return Granted(tuple(asks), count, granted_at, since, lease_us, *told)
        case "wait":
            return Wait(wait_us, asks[place - 1].name, wait_reason(window_us))
        case _:
            return Never(asks[place - 1].name, most * asks[place - 1].cost)


def wait_reason(window_us: int) -> str:
    """The same text as in `domain.limits.buckets`."""
    if window_us in SPECIAL_REASONS:
        return SPECIAL_REASONS[window_us]
    if window_us > 0:
        return RATE_USED.format(window_us / SECOND_US)
    return "its concurrency limit is reached" if window_us < 0 else "the provider asked for a wait"


def parse_level(row: Record) -> Level:
    _, since, blocked_until, percent, generation, slowed_at, *rest = row
    state, arrays = rest[:6], rest[6:]
    windows, tats, turns, paces, used_windows, used_until, used_amounts, holders, counts, untils = arrays
    in_flight = zip(holders or (), counts or (), untils or (), strict=True)
    return Level(
        buckets={window: Bucket(*each) for window, *each in zip(windows, tats, turns, paces, strict=True)},
        since=since,
        blocked_until=blocked_until,
        percent=percent,
        generation=generation,
        slowed_at=slowed_at,
        breaker=Breaker(*state),
        in_flight={holder: InFlight(count, until) for holder, count, until in in_flight},
        used=tuple(Use(*each) for each in zip(used_windows, used_until, used_amounts, strict=True)),
    )
