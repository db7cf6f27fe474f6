"""A server that loses its state, by a kill, a restore, a failover or a flush, must never let the limit be exceeded.

The oracle counts the grants in every window by the instants at which the server granted them.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from leaseway.domain.errors import BadValue, LeasewayError, StoreFull, StoreRefused, TransientError, UnknownLimit
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.buckets import Granted, Notice, Wait, permits_left
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import Limit, LimitDefinition, PermitRequest, size_limit
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.stores.redis import connection as connection_module
from leaseway.stores.redis.connection import parse_address, script
from leaseway.stores.redis.limits import RedisLimiter, render_definition
from leaseway.testing.clock import FakeClock
from leaseway.testing.server import free_port
from leaseway.testing.valkey import ValkeyServer, valkey_server

MAPS = Limit("maps", "20/minute", burst=0.55, lease=0, delay=0)
"""Eleven at once, and then one every six seconds."""
ASK = PermitRequest("maps", "maps")
WINDOW_US = 60 * SECOND_US
COUNT = 20
SEATS = Limit("seats", concurrency=2)
MANY = 1_000_000
DAY_SECONDS = 86_400


class Forgetful(RedisLimiter):
    """A limiter without a fence: it trusts whatever state the server still has."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        use = re.compile(r"(?<!function )fenced\((now|clock\(\))\)")
        scripts = self._server.scripts
        self._server.scripts = {verb: script(use.sub("0", each.text)) for verb, each in scripts.items()}


def most_in_any_window(grants: Sequence[Granted], window_us: int) -> int:
    """Counted independently of the implementation. A window that starts between two grants cannot contain more."""
    return max(
        sum(grant.count for grant in grants if 0 <= grant.granted_at - first.granted_at < window_us) for first in grants
    )


@asynccontextmanager
async def opened(server: ValkeyServer, now_us: Callable[[], Instant] | None = None) -> AsyncIterator[RedisLimiter]:
    limiter = RedisLimiter(server.url, now_us)
    await limiter.open()
    yield limiter
    await limiter.close()


@pytest.fixture
async def redis(valkey: ValkeyServer, clock: FakeClock) -> AsyncIterator[RedisLimiter]:
    """A limiter whose server persists its state, with MAPS full."""
    valkey.command("FLUSHALL")
    async with opened(valkey, clock.now_us) as limiter:
        await limiter.definitions.declare([MAPS.definition])
        clock.advance(DAY_SECONDS)
        yield limiter


async def error_of(call: Awaitable[object]) -> LeasewayError:
    with pytest.raises(LeasewayError) as caught:
        await call
    return caught.value


async def granted(limiter: RedisLimiter, most: int = 1) -> Granted:
    verdict = await limiter.acquire([ASK], most=most)
    assert isinstance(verdict, Granted), verdict
    return verdict


async def left(limiter: RedisLimiter) -> int:
    """The number of permits left in MAPS."""
    now, (level,) = await limiter.levels([ASK])
    (window,) = size_limit(MAPS.definition).windows
    return permits_left(window, level.buckets[window.window_us], now)


# -- lost state -----------------------------------------------------------------------------------------------------


class Place:
    """A server in its own directory, with room for a backup and for a second server."""

    def __init__(self, server: ValkeyServer, other: ValkeyServer, folder: Path) -> None:
        self.server = server
        self.other = other
        self.backup = folder / "backup.rdb"


async def killed(place: Place) -> None:
    place.server.kill()
    place.server.start()


async def restored(place: Place) -> None:
    place.server.kill()
    place.server.use_snapshot(place.backup)
    place.server.start()


async def restarted(place: Place) -> None:
    """A clean restart: everything is still there, but the server cannot know that afterwards."""
    place.server.save()
    place.server.stop()
    place.server.start()


async def failed_over(place: Place) -> None:
    """Fail over to a replica that has been disconnected from the primary for a while."""
    place.server.kill()
    place.other.promote()
    assert place.other.command("CONFIG", "SET", "port", str(place.server.port)) == "+OK"


async def flushed(place: Place) -> None:
    place.server.command("FLUSHALL")


async def replicated(place: Place) -> None:
    """The first replica changes the primary's replication id, which is a fence, so it must be added first."""
    place.other.follow(place.server)


async def cut_off(place: Place) -> None:
    """From here on the replica receives nothing, and the backup becomes stale."""
    place.other.command("REPLICAOF", "127.0.0.1", str(free_port()))
    place.server.keep_snapshot(place.backup)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    with valkey_server() as server, valkey_server() as other:
        yield Place(server, other, tmp_path)


async def heard(*limiters: RedisLimiter) -> None:
    """A test that blocks its own event loop learns late that connections have closed; let the limiters notice
    it now.
    """
    for limiter in limiters:
        await limiter.connections.look("PING")


async def grants_of(limiter: RedisLimiter, definition: LimitDefinition) -> list[Granted]:
    """All permits that one worker gets now."""
    try:
        verdict = await limiter.acquire([ASK], most=MANY)
    except UnknownLimit:  # only the limiter without a fence may get this error
        assert isinstance(limiter, Forgetful)
        await limiter.definitions.declare([definition])
        return await grants_of(limiter, definition)
    return [verdict] if isinstance(verdict, Granted) else []


async def hammered(limiters: Sequence[RedisLimiter], clock: FakeClock, steps: int) -> list[Granted]:
    grants = []
    for _ in range(steps):
        for found in await asyncio.gather(*(grants_of(limiter, MAPS.definition) for limiter in limiters)):
            grants += found
        clock.advance(1.7)
    return grants


async def all_grants(
    kind: type[RedisLimiter], place: Place, fault: Callable[[Place], Awaitable[None]]
) -> list[Granted]:
    """Three workers take what they can while the server loses its state in the middle of a window."""
    clock = FakeClock()
    await replicated(place)
    async with AsyncExitStack() as stack:
        limiters = [kind(place.server.url, clock.now_us) for _ in range(3)]
        for limiter in limiters:
            await limiter.open()
            stack.push_async_callback(limiter.close)
            await limiter.definitions.declare([MAPS.definition])
        clock.advance(DAY_SECONDS)
        await limiters[0].observe(Notice("maps", "maps", 0, remaining=9))
        await cut_off(place)
        grants = await hammered(limiters, clock, 10)
        await fault(place)
        await heard(*limiters)
        return grants + await hammered(limiters, clock, 80)


FAULTS = [killed, restored, restarted, failed_over, flushed]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_server_that_forgets_lets_nobody_exceed_the_limit(
    place: Place, fault: Callable[[Place], Awaitable[None]]
) -> None:
    """The provider still counts the requests that were sent before."""
    grants = await all_grants(RedisLimiter, place, fault)
    assert sum(grant.count for grant in grants) > COUNT
    assert most_in_any_window(grants, WINDOW_US) <= COUNT


@pytest.mark.parametrize("fault", [killed, restored, failed_over, flushed])
async def test_without_the_fence_the_same_server_would_exceed_it(
    place: Place, fault: Callable[[Place], Awaitable[None]]
) -> None:
    """This proves that the fence is what protects the limit, and that the test above can fail."""
    assert most_in_any_window(await all_grants(Forgetful, place, fault), WINDOW_US) > COUNT


async def test_no_window_overflows_in_real_time_while_the_server_is_killed(place: Place) -> None:
    """This uses the server's own clock, calls in flight when it is killed, and four workers that reconnect at once."""
    limit = Limit("maps", "20 per 0.5 s", burst=0.5)
    grants: list[Granted] = []
    reached = {COUNT: asyncio.Event(), 2 * COUNT: asyncio.Event()}

    async def work(limiter: RedisLimiter) -> None:
        while sum(grant.count for grant in grants) < 3 * COUNT:
            with suppress(TransientError):
                match await limiter.acquire([ASK], most=2):
                    case Granted() as grant:
                        grants.append(grant)
                        for count, event in reached.items():
                            if sum(grant.count for grant in grants) >= count:
                                event.set()
                    case Wait(wait_us=wait_us):
                        await asyncio.sleep(wait_us / SECOND_US)

    async def harm() -> None:
        for event in reached.values():
            await event.wait()
            await killed(place)

    async with AsyncExitStack() as stack:
        limiters = [await stack.enter_async_context(opened(place.server)) for _ in range(4)]
        for limiter in limiters:
            await limiter.definitions.declare([limit.definition])
        await asyncio.gather(harm(), *(work(limiter) for limiter in limiters))
    assert most_in_any_window(grants, SECOND_US // 2) <= COUNT


async def test_a_primary_that_comes_back_after_two_failovers_is_not_trusted(place: Place) -> None:
    """The server never restarted, so its run id is unchanged, and no fence was written in between: only its replication
    history shows that its state comes from the other server.
    """
    clock = FakeClock()
    await replicated(place)
    async with opened(place.server, clock.now_us) as limiter:
        await limiter.definitions.declare([MAPS.definition])
        clock.advance(DAY_SECONDS)
        await cut_off(place)
        assert (await granted(limiter, MANY)).count == 11
        place.other.promote()
        place.server.follow(place.other)
        place.server.promote()
        assert isinstance(await limiter.acquire([ASK]), Wait)


async def test_after_a_loss_seats_are_given_only_when_their_holders_have_spoken(place: Place) -> None:
    """Earlier calls are still in flight."""
    clock, ask = FakeClock(), PermitRequest("seats", "seats")
    async with opened(place.server, clock.now_us) as limiter:
        await limiter.definitions.declare([SEATS.definition])
        clock.advance(DAY_SECONDS)
        assert isinstance(await limiter.acquire([ask], holder="one", in_flight_us=60 * SECOND_US), Granted)
        await killed(place)
        await heard(limiter)
        assert isinstance(await limiter.acquire([ask], holder="two", in_flight_us=60 * SECOND_US), Wait)
        await limiter.renew_calls([ask], "one", 1, 60 * SECOND_US)
        clock.advance(11)
        verdict = await limiter.acquire([ask], most=2, holder="two", in_flight_us=60 * SECOND_US)
        assert isinstance(verdict, Granted)
        assert verdict.count == 1


async def test_what_the_code_declares_is_known_again_after_a_loss(place: Place) -> None:
    """Workers are not restarted when a cache is, and a stale copy must not restore an old definition."""
    clock = FakeClock()
    async with opened(place.server, clock.now_us) as worker, opened(place.server, clock.now_us) as other:
        await other.definitions.declare([Limit("maps", "2000/minute").definition])
        await cut_off(place)
        await worker.definitions.declare([MAPS.definition])
        for fault in (restored, killed, flushed):
            await fault(place)
            await heard(worker, other)
            clock.advance(1)
            await worker.acquire([ASK])
            ((definition, _),) = await other.definitions.all()
            assert definition == MAPS.definition


async def test_a_restart_keeps_what_an_operator_said(place: Place) -> None:
    """The code declares the same as before, so the operator's change must stay in force."""
    clock = FakeClock()
    async with opened(place.server, clock.now_us) as worker:
        await worker.definitions.declare([MAPS.definition])
        lower = Limit("maps", "5/minute").definition
        assert await worker.definitions.change(lower) == 2
        await restarted(place)
        await heard(worker)
        assert isinstance(await worker.acquire([ASK]), Wait)
        assert await worker.definitions.all() == [(lower, 2)]


def test_a_definition_is_written_without_what_it_leaves_open() -> None:
    """Otherwise a release that adds a field would undo operators' changes when its first worker starts."""
    assert render_definition(Limit("maps", "20/minute").definition) == (
        '{"name":"maps","rates":[{"window_us":60000000,"count":20}]}'
    )


async def test_a_forgotten_limit_stays_forgotten_while_the_server_remembers(redis: RedisLimiter) -> None:
    """Only a loss of state may make a worker declare its limits again."""
    assert await redis.definitions.forget("maps")
    assert isinstance(await error_of(redis.acquire([ASK])), UnknownLimit)
    assert not await redis.definitions.forget("maps")


def keys_of(valkey: ValkeyServer) -> set[str]:
    return set(valkey.command("KEYS", "*").splitlines()[2::2])


async def test_forgetting_a_limit_spares_those_with_names_that_look_alike(
    redis: RedisLimiter, valkey: ValkeyServer
) -> None:
    """A name may contain characters that the server treats as a pattern."""
    limits = [Limit(name, "20/minute") for name in ("a*", "ab", "a[b]", "a\\*", "a?")]
    await redis.definitions.declare([limit.definition for limit in limits])
    for limit in limits:
        await redis.acquire([PermitRequest(limit.name, limit.name)])
    for limit in limits:
        before = keys_of(valkey)
        await redis.definitions.forget(limit.name)
        assert before - keys_of(valkey) == {f"{{leaseway}}:level:{limit.name}\t{limit.name}"}


# -- lost replies ---------------------------------------------------------------------------------------------------


class Thief:
    """A proxy between limiter and server that can drop the replies to a command and close the connection."""

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        self.steals: bytes | None = None
        self.stolen = 0
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        try:
            while command := await reader.read(65_536):
                server_writer.write(command)
                reply = await server_reader.read(65_536)
                if self.steals is not None and self.steals in command:
                    self.stolen += 1
                    return
                writer.write(reply)
        except ConnectionError:
            pass
        finally:
            server_writer.close()
            writer.close()


@asynccontextmanager
async def thief_before(server: ValkeyServer) -> AsyncIterator[Thief]:
    thief = Thief(server)
    async with await asyncio.start_server(thief.carry, "127.0.0.1", thief.port):
        yield thief


@pytest.fixture
async def robbed(
    valkey: ValkeyServer, clock: FakeClock, redis: RedisLimiter
) -> AsyncIterator[tuple[Thief, RedisLimiter]]:
    """A limiter behind the proxy that has taken once, so that the server knows its scripts."""
    async with thief_before(valkey) as thief:
        limiter = RedisLimiter(thief.url, clock.now_us)
        await limiter.open()
        await limiter.return_unused(await granted(limiter), 1)
        yield thief, limiter
        await limiter.close()


async def test_a_take_whose_reply_is_lost_is_not_repeated(
    robbed: tuple[Thief, RedisLimiter], redis: RedisLimiter
) -> None:
    """The grant is used up once. A repetition would use it up twice and count calls that do not exist."""
    thief, limiter = robbed
    thief.steals = b"EVALSHA"
    assert isinstance(await error_of(limiter.acquire([ASK])), TransientError)
    assert thief.stolen == 1
    assert await left(redis) == 10


async def test_a_return_whose_reply_is_lost_is_not_repeated(
    robbed: tuple[Thief, RedisLimiter], redis: RedisLimiter
) -> None:
    """If they were returned twice, used permits would come back."""
    thief, limiter = robbed
    taken = await granted(limiter, 11)
    thief.steals = b"EVALSHA"
    assert isinstance(await error_of(limiter.return_unused(taken, 3)), TransientError)
    assert thief.stolen == 1
    assert await left(redis) == 3


async def test_a_server_that_does_not_answer_is_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    """A limiter that hangs must not make jobs hang."""
    monkeypatch.setattr(connection_module, "CALL_SECONDS_MAX", 0.1)
    async with opened(place.server, clock.now_us) as limiter:
        await limiter.definitions.declare([MAPS.definition])
        place.server.pause()
        assert "no reply in time" in str(await error_of(limiter.acquire([ASK])))
        place.server.resume()


async def test_a_script_that_the_server_has_thrown_away_is_sent_again(
    redis: RedisLimiter, valkey: ValkeyServer
) -> None:
    """A server may discard its scripts at any time, and a call of an unknown script has not run."""
    await granted(redis)
    assert valkey.command("SCRIPT", "FLUSH") == "+OK"
    await granted(redis)
    assert await left(redis) == 9


# -- refused and failing servers ------------------------------------------------------------------------------------


async def test_a_server_that_evicts_is_refused() -> None:
    """An evicted bucket looks like a full one."""
    with valkey_server(maxmemory="100mb", maxmemory_policy="volatile-ttl") as server:
        limiter = RedisLimiter(server.url)
        error = await error_of(limiter.open())
        assert isinstance(error, StoreRefused)
        assert "maxmemory-policy volatile-ttl" in str(error)
        assert "CONFIG SET maxmemory-policy noeviction" in str(error)
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        await limiter.open()
        await limiter.close()


async def test_a_server_that_begins_to_evict_is_refused_after_a_failover(place: Place) -> None:
    """The new primary has its own settings."""
    clock = FakeClock()
    await replicated(place)
    async with opened(place.server, clock.now_us) as limiter:
        await limiter.definitions.declare([MAPS.definition])
        place.other.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
        await failed_over(place)
        await heard(limiter)
        assert "allkeys-lru" in str(await error_of(limiter.acquire([ASK])))


async def test_a_server_without_memory_grants_nothing(clock: FakeClock) -> None:
    """A grant that cannot be recorded must not be given."""
    with valkey_server() as server:
        async with opened(server, clock.now_us) as limiter:
            await limiter.definitions.declare([MAPS.definition])
            clock.advance(DAY_SECONDS)
            server.command("CONFIG", "SET", "maxmemory", "1")
            error = await error_of(limiter.acquire([ASK]))
            assert isinstance(error, StoreFull)
            assert "maxmemory" in str(error)
            server.command("CONFIG", "SET", "maxmemory", "0")
            assert await left(limiter) == 11


async def test_a_replica_is_refused_and_one_that_was_a_primary_grants_nothing(place: Place, clock: FakeClock) -> None:
    """Writes to a replica are lost."""
    place.other.follow(place.server)
    refused = RedisLimiter(place.other.url)
    assert "is a replica" in str(await error_of(refused.open()))
    await refused.close()
    place.other.promote()
    async with opened(place.other, clock.now_us) as limiter:
        await limiter.definitions.declare([MAPS.definition])
        clock.advance(DAY_SECONDS)
        await granted(limiter)
        place.other.follow(place.server)
        error = await error_of(limiter.acquire([ASK]))
        assert isinstance(error, TransientError)
        assert "primary" in str(error)


async def test_an_old_server_is_refused() -> None:
    """Its scripts lack functions that the limiter needs."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = b"# Server\r\nredis_version:6.2.14\r\nrole:master\r\n"
        while command := await reader.read(65_536):
            is_info = b"INFO" in command and b"SETINFO" not in command
            writer.write(b"$%d\r\n%s\r\n" % (len(info), info) if is_info else b"+OK\r\n" * command.count(b"*"))
        writer.close()

    port = free_port()
    async with await asyncio.start_server(answer, "127.0.0.1", port):
        limiter = RedisLimiter(f"redis://127.0.0.1:{port}")
        assert "is Redis 6.2.14; 7 or newer" in str(await error_of(limiter.open()))
        await limiter.close()


async def test_nobody_listening_is_said_with_the_address_but_without_the_password() -> None:
    """The message ends up in logs."""
    limiter = RedisLimiter(f"redis://me:hush-hush@127.0.0.1:{free_port()}/0")
    error = await error_of(limiter.open())
    assert isinstance(error, TransientError)
    assert "127.0.0.1" in str(error)
    assert "hush" not in str(error)
    await limiter.close()


async def test_a_user_without_the_rights_is_told_which_are_missing() -> None:
    """The fence needs INFO inside scripts, which restrictive ACLs forbid."""
    with valkey_server() as server:
        rights = "on >word ~{leaseway}* +@connection +@read +@write +@scripting +time"
        server.command("ACL", "SETUSER", "worker", *rights.split())
        limiter = RedisLimiter(server.url.replace("redis://", "redis://worker:word@"))
        error = await error_of(limiter.open())
        assert isinstance(error, StoreRefused)
        assert "+info" in str(error)
        server.command("ACL", "SETUSER", "worker", "+info")
        await limiter.open()
        await limiter.definitions.declare([MAPS.definition])
        assert isinstance(await limiter.acquire([ASK]), Wait)
        assert await limiter.definitions.forget("maps")
        await limiter.close()
        wrong = RedisLimiter(server.url.replace("redis://", "redis://worker:guess@"))
        assert isinstance(await error_of(wrong.open()), StoreRefused)
        await wrong.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://h/0?pool=0", "pool"),
        ("redis://h/0?prefix=", "prefix"),
        ("redis://h/0?prefix={a}", "prefix"),
        ("redis://h/0?retry_on_timeout=yes", "retry_on_timeout"),
        ("redis://h/limits", "/limits"),
        ("redis://me:hush@h:port", "port must be a number"),
        ("http://h", "redis"),
    ],
)
def test_an_address_that_means_nothing_is_refused_at_once(url: str, says: str) -> None:
    """The error must appear at startup, not when the first job needs a permit."""
    with pytest.raises((StoreRefused, BadValue)) as caught:
        parse_address(url)
    assert says in str(caught.value)
    assert "hush" not in str(caught.value)


def test_valkey_and_its_prefix_are_understood() -> None:
    """Two installations share a server by their prefixes."""
    address = parse_address("valkeys://h:1/2?prefix=test&ssl_cert_reqs=none&pool=3")
    assert (address.url, address.pool) == ("rediss://h:1/2?ssl_cert_reqs=none", 3)
    assert address.key("fence") == "{test}:fence"


# -- numbers and keys -----------------------------------------------------------------------------------------------

LARGE = [
    Limit("maps", "1000000000/day", burst=0.8),
    Limit("maps", "999999937/week", burst=0.05, cost_max=999_983),
    Limit("maps", "1 per 4 day"),
    Limit("maps", "2/week"),
    Limit("maps", "7/week", "999983/hour", burst=0.3),
]


@pytest.mark.parametrize("limit", LARGE, ids=lambda limit: str(limit.definition.rates[0]))
async def test_large_numbers_stay_exact(redis: RedisLimiter, limit: Limit) -> None:
    """Lua calculates in doubles and prints 1.75e+15; a lost digit would exceed a window."""
    clock = FakeClock(7_999_999_999_999_877)  # the year 2223; instants and turns pass 2^53 in 2255
    memory = MemoryLimiter(clock.now_us)
    async with opened_anew(redis, clock) as limiter:
        ask = PermitRequest("maps", "maps", limit.definition.cost_max)
        for each in (memory, limiter):
            await each.definitions.declare([limit.definition])
        for step in range(40):
            clock.advance_us(step * 7_777_777_777 // (1 + step % 7))
            for generation in range(step // 9 * 3, step // 9 * 3 + 3) if step % 9 == 4 else ():
                notice = Notice("maps", "maps", generation, throttled=True, retry_after_us=999_999)
                await memory.observe(notice)
                await limiter.observe(notice)
                assert await limiter.levels([ask]) == await memory.levels([ask])
            expected = await memory.acquire([ask], most=1 + step * step * 99_991)
            assert await limiter.acquire([ask], most=1 + step * step * 99_991) == expected
            assert await limiter.levels([ask]) == await memory.levels([ask])


@asynccontextmanager
async def opened_anew(limiter: RedisLimiter, clock: FakeClock) -> AsyncIterator[RedisLimiter]:
    """A new limiter on the same, emptied server."""
    await limiter.connections.call("FLUSHALL")
    other = RedisLimiter(limiter.address.url, clock.now_us)
    await other.open()
    yield other
    await other.close()


def ttl_us(valkey: ValkeyServer, name: str = "maps") -> int:
    return int(valkey.command("PTTL", f"{{leaseway}}:level:{name}\t{name}").removeprefix(":")) * 1_000


async def test_a_level_is_remembered_for_as_long_as_it_matters(
    redis: RedisLimiter, valkey: ValkeyServer, clock: FakeClock
) -> None:
    """A block, a slower rate or a turn that expires early would exceed the limit. The server's clock goes on meanwhile,
    so half a minute of slack is left for a slow machine.
    """
    day_us, slack_us = DAY_SECONDS * SECOND_US, 30 * SECOND_US
    taken = await granted(redis, MANY)
    assert ttl_us(valkey) > taken.count * 6 * SECOND_US + day_us - slack_us
    await redis.observe(Notice("maps", "maps", 0, throttled=True, retry_after_us=31 * day_us))
    level = await level_of(redis)
    slowed_us = (level.slowed_at - clock.now_us()) + 6 * WINDOW_US
    assert ttl_us(valkey) > slowed_us + day_us - slack_us
    await redis.definitions.declare([SEATS.definition])
    await redis.observe(Notice("seats", "seats", 7, throttled=True, retry_after_us=31 * day_us))
    assert ttl_us(valkey, "seats") > 32 * day_us - slack_us


async def level_of(limiter: RedisLimiter) -> Level:
    _, (level,) = await limiter.levels([ASK])
    return level


async def test_all_keys_are_of_one_slot_and_under_the_prefix(redis: RedisLimiter, valkey: ValkeyServer) -> None:
    """A script must not touch keys of several slots, and other applications use the server, too."""
    await redis.definitions.declare([Limit("maps:{tenant}", "5/minute").definition])
    await redis.acquire([ASK, PermitRequest("maps:{x}", "maps:{tenant}")])
    assert len(keys_of(valkey)) == 4
    assert {key[:11] for key in keys_of(valkey)} == {"{leaseway}:"}


def until(is_so: Callable[[], bool]) -> None:
    """Poll, because the server notices a closed connection a moment later."""
    for _ in range(12_000):
        if is_so():
            return
        time.sleep(0.005)
    pytest.fail("it never came to that")


def test_each_event_loop_has_connections_of_its_own(valkey: ValkeyServer) -> None:
    """Callers without async create an event loop per call, and a connection of another loop would hang."""
    valkey.command("FLUSHALL")
    limiter = RedisLimiter(valkey.url)

    async def use() -> None:
        await limiter.open()
        await limiter.definitions.declare([MAPS.definition])
        assert isinstance(await limiter.acquire([ASK]), Wait)

    for _ in range(3):
        asyncio.run(use())
    until(lambda: "name=leaseway" not in valkey.command("CLIENT", "LIST"))


class Settable(RedisLimiter):
    """A limiter whose server has a clock that can be set: the key `offset` is added to it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        scripts = self._server.scripts
        offset = "local wall = wall_clock() + tonumber(redis.call('GET', 'offset') or 0)"
        self._server.scripts = {
            verb: script(each.text.replace("local wall = wall_clock()", offset)) for verb, each in scripts.items()
        }

    async def set_clock(self, minutes: int) -> None:
        await self.connections.call("SET", "offset", minutes * WINDOW_US)

    async def now(self) -> Instant:
        return (await self.levels([ASK]))[0]


async def test_a_clock_that_is_set_back_does_not_close_limits(valkey: ValkeyServer) -> None:
    """Every limit in use would be closed for as long as the step: its last permits lie in the future."""
    limiter = Settable(valkey.url)
    await limiter.open()
    await limiter.set_clock(0)
    await limiter.definitions.declare([MAPS.definition])
    before = await limiter.now()
    await limiter.set_clock(-10)
    after = await limiter.now()
    assert before - SECOND_US <= after < before + WINDOW_US
    verdict = await limiter.acquire([ASK])
    assert not isinstance(verdict, Wait) or verdict.wait_us < WINDOW_US
    assert after <= await limiter.now() < before + WINDOW_US
    await limiter.set_clock(0)  # the clock is set right: time must not move by ten minutes once more
    assert after <= await limiter.now() < before + 2 * WINDOW_US
    await limiter.set_clock(-61 - 2)
    assert await limiter.now() < before - 60 * WINDOW_US  # a longer step is followed
    await limiter.close()
