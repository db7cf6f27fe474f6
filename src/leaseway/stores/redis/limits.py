"""Limits in Redis or Valkey. Each method is one script and one round trip, decided by the server's clock.

`now_us` is for tests that move time: its value is then sent along as the instant.

The server may lose state through a restart, a restored snapshot or a failover to a lagging replica. The scripts detect
this by the server's identity, and all earlier state counts as used. Definitions may be lost as well: a limiter that
calls under an old fence is told so, declares its limits again and repeats the call.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from leaseway.domain.errors import Stale, StoreRefused, TransientError, UnknownLimit, stale_text
from leaseway.domain.ids import Instant
from leaseway.domain.limits.buckets import IN_FLIGHT_GRACE_US, Granted, Never, Notice, Verdict, Wait
from leaseway.domain.limits.level import Breaker, Bucket, InFlight, Level, Use
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, Sizing, check_limit, size_limit
from leaseway.domain.limits.validation import (
    check_acquire,
    check_ended,
    check_in_flight,
    check_notice,
    check_requests,
    check_unused,
)
from leaseway.ports.limiter import LimitDefinitions
from leaseway.stores.redis.connection import Connections, parse_address, scripts

VERSION_MIN = 7
FENCES_MAX = 3
"""How often the server may lose its state during one call."""
PAGE = 1_000


class SentDefinition(Struct, frozen=True):
    """A definition as it is sent to the server."""

    name: str
    definition: str
    sizing: Sizing


class StoredDefinition(Struct, frozen=True):
    """A definition as the server stores it."""

    version: int
    definition: str
    sizing: "StoredSizing"

    def read(self) -> LimitDefinition:
        definition = msgspec.json.decode(self.definition, type=LimitDefinition)
        return replace(definition, paused=bool(self.sizing.paused))


class StoredSizing(Struct, frozen=True):
    """The part that the server updates itself: a new declaration does not say whether the limit is paused."""

    paused: bool | None = None


class ScriptRequest(Struct, frozen=True, omit_defaults=True):
    """The arguments of a script. Only the shared functions in buckets.lua read the first four."""

    now: Instant | None = None
    since: Instant | None = None
    asks: Sequence[PermitRequest] | None = None
    must_be_known: bool | None = None
    least: int | None = None
    most: int | None = None
    count: int | None = None
    used: Sequence[int] | None = None
    holder: str | None = None
    in_flight_us: int | None = None
    in_flight_grace_us: int | None = None
    granted_at: Instant | None = None
    granted_since: Instant | None = None
    generations: Sequence[int] | None = None
    notice: Notice | None = None
    definitions: Sequence[SentDefinition] | None = None
    is_declared: bool | None = None
    expected: int | None = None


class FencedServer:
    """Runs scripts under the fence that the server reported last.

    The server may lose its memory and thereby raise the fence. This object then declares again what was declared
    through it.
    """

    def __init__(self, url: str, now_us: Callable[[], Instant] | None) -> None:
        self.address = parse_address(url)
        self.connections = Connections(self.address)
        self.scripts = scripts()
        self.declared: dict[str, LimitDefinition] = {}
        self._now_us = now_us
        self._since: Instant | None = None
        """The fence under which the server knows what this process has declared."""

    async def open(self) -> None:
        await self._examine()
        _, self._since = await self._run("open", ScriptRequest())

    async def call(self, verb: str, request: ScriptRequest) -> list[Any]:
        """Run a script. If the server reports another fence, nothing was done: adopt that fence and repeat."""
        for _ in range(FENCES_MAX):
            answer = await self._run(verb, replace(request, since=self._since))
            if answer[0] == "unknown":
                raise UnknownLimit(f"{answer[1]}: no limit of this name is defined; declare it first")
            if answer[0] != "fenced":
                return answer
            await self._declare_again(answer[1])
        raise TransientError(f"{self.address.shown}: the server keeps losing its state; try again later")

    async def _declare_again(self, since: Instant) -> None:
        """A server restored from an old copy has older definitions or none, and may be another server."""
        await self._examine()
        given = [encode_definition(definition) for definition in self.declared.values()]
        answer = await self._run("define", ScriptRequest(since=since, definitions=given, is_declared=True))
        if answer[0] == "defined":
            self._since = since

    async def _run(self, verb: str, request: ScriptRequest) -> list[Any]:
        if self._now_us is not None:
            request = replace(request, now=self._now_us())
        levels = [self.level_key(ask.limit, ask.name) for ask in request.asks or ()]
        keys = [self.address.key("fence"), self.address.key("limits"), *levels]
        answer = await self.connections.run(self.scripts[verb], keys, msgspec.msgpack.encode(request))
        return msgspec.msgpack.decode(answer, type=list[Any])

    def level_key(self, limit: str, name: str) -> str:
        """Names contain no tab, so no two pairs have the same key."""
        return self.address.key("level", f"{limit}\t{name}")

    async def _examine(self) -> None:
        """Refuse a server that may lose state without notice, or that is too old."""
        where, info = self.address.shown, await self.connections.look("INFO")
        version, policy = str(info["redis_version"]), info.get("maxmemory_policy", "noeviction")
        if int(version.partition(".")[0]) < VERSION_MIN:
            raise StoreRefused(f"{where}: is Redis {version}; {VERSION_MIN} or newer is needed, or Valkey")
        if info["role"] != "master":
            raise StoreRefused(f"{where}: is a replica; use the URL of its primary")
        if info.get("maxmemory", 0) and policy != "noeviction":
            raise StoreRefused(
                f"{where}: with maxmemory-policy {policy} the server evicts limiter state when memory is short, "
                "and limits would be exceeded; run CONFIG SET maxmemory-policy noeviction, or use another server"
            )


class RedisLimitDefinitions:
    def __init__(self, server: FencedServer) -> None:
        self._server = server

    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        given = [encode_definition(definition) for definition in definitions]
        await self._server.call("define", ScriptRequest(definitions=given, is_declared=True))
        self._server.declared.update((definition.name, definition) for definition in definitions)

    async def change(self, definition: LimitDefinition, *, expected: int | None = None) -> int:
        request = ScriptRequest(definitions=[encode_definition(definition)], expected=expected)
        answer, versions = await self._server.call("define", request)
        if answer == "stale":
            raise Stale(stale_text(f"limit {definition.name}", int(versions), expected or 0))
        return int(versions[0])

    async def all(self) -> list[tuple[LimitDefinition, int]]:
        packed = await self._server.connections.look("HGETALL", self._server.address.key("limits"))
        kept = [msgspec.msgpack.decode(value, type=StoredDefinition) for value in packed.values()]
        found = [(each.read(), each.version) for each in kept]
        return sorted(found, key=lambda each: each[0].name)

    async def forget(self, name: str) -> bool:
        self._server.declared.pop(name, None)
        was_there = await self._server.connections.call("HDEL", self._server.address.key("limits"), name)
        cursor, pattern = 0, self._server.level_key(escape_pattern(name), "*")
        while True:  # ends when the cursor has passed all keys
            cursor, keys = await self._server.connections.look("SCAN", cursor, "MATCH", pattern, "COUNT", PAGE)
            if keys:
                await self._server.connections.call("UNLINK", *keys)
            if cursor == 0:
                return bool(was_there)


class RedisLimiter:
    def __init__(
        self, url: str, now_us: Callable[[], Instant] | None = None, *, in_flight_grace_us: int = IN_FLIGHT_GRACE_US
    ) -> None:
        self._server = FencedServer(url, now_us)
        self._in_flight_grace_us = in_flight_grace_us
        self.address = self._server.address
        self.connections = self._server.connections
        self.definitions: LimitDefinitions = RedisLimitDefinitions(self._server)

    async def open(self) -> None:
        await self._server.open()

    async def close(self) -> None:
        await self.connections.close()

    async def acquire(
        self, asks: Sequence[PermitRequest], *, least: int = 1, most: int = 1, holder: str = "", in_flight_us: int = 0
    ) -> Verdict:
        check_acquire(asks, least, most, in_flight_us)
        caller = ScriptRequest(holder=holder, in_flight_us=in_flight_us, in_flight_grace_us=self._in_flight_grace_us)
        request = replace(caller, asks=asks, must_be_known=True, least=least, most=most)
        match await self._server.call("acquire", request):
            case ["granted", count, now, since, lease_us, generations, circuits, watched]:
                told = tuple(generations), tuple(circuits), tuple(watched)
                return Granted(tuple(asks), count, now, since, lease_us, *told)
            case ["wait", wait_us, name, why]:
                return Wait(wait_us, name, why)
            case [_, name, most_at_once]:
                return Never(name, most_at_once)
            case answer:
                raise AssertionError(f"unexpected reply of the script: {answer}")

    async def return_unused(self, granted: Granted, unused: int) -> None:
        check_unused(granted, unused)
        before = ScriptRequest(
            granted_at=granted.granted_at, granted_since=granted.since, generations=granted.generations
        )
        await self._server.call("return_unused", replace(before, asks=granted.asks, count=unused))

    async def end_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, used: Sequence[int] = ()) -> None:
        check_ended(asks, holder, count, used)
        await self._server.call("end_calls", ScriptRequest(asks=asks, holder=holder, count=count, used=list(used)))

    async def renew_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, in_flight_us: int) -> None:
        check_in_flight(asks, holder, count, in_flight_us)
        await self._server.call(
            "renew_calls", ScriptRequest(asks=asks, holder=holder, count=count, in_flight_us=in_flight_us)
        )

    async def observe(self, notice: Notice) -> None:
        check_notice(notice)
        await self._server.call(
            "observe",
            ScriptRequest(asks=[PermitRequest(notice.name, notice.limit)], notice=notice, must_be_known=True),
        )

    async def levels(self, asks: Sequence[PermitRequest]) -> tuple[Instant, list[Level]]:
        check_requests(asks)
        _, now, levels = await self._server.call("levels", ScriptRequest(asks=asks, must_be_known=True))
        return now, [parse_level(level) for level in levels]


def escape_pattern(name: str) -> str:
    """Escape a name so that the pattern matches only the name."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", name)


def encode_definition(definition: LimitDefinition) -> SentDefinition:
    return SentDefinition(definition.name, render_definition(check_limit(definition)), size_limit(definition))


def render_definition(definition: LimitDefinition) -> str:
    """Without fields at their defaults, so that new fields of a later leaseway do not look like a change."""
    said = {each.name: getattr(definition, each.name) for each in fields(definition)}
    news = {each.name: said[each.name] for each in fields(definition) if said[each.name] != each.default}
    return msgspec.json.encode(news).decode()


def parse_level(level: dict[str, Any]) -> Level:
    """An empty Lua table arrives as a list, whether it was a list or a mapping."""
    buckets, in_flight = dict(level.pop("buckets")), dict(level.pop("in_flight"))
    used, breaker = tuple(Use(**each) for each in level.pop("used")), Breaker(**level.pop("breaker"))
    return Level(
        buckets={window_us: Bucket(**bucket) for window_us, bucket in buckets.items()},
        in_flight={holder: InFlight(**calls) for holder, calls in in_flight.items()},
        used=used,
        breaker=breaker,
        **level,
    )
