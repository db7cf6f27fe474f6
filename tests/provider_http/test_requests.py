"""ctx.http against a real server on this machine: which requests are sent, which are repeated, and which must
not be.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial

import pytest
from tests.provider_http.fake_admission import Place

from leaseway.aiohttp_transport import AiohttpTransport
from leaseway.domain.errors import BadValue, LeaseLost, TransientError, UsageError
from leaseway.domain.http import ConnectFailed, HttpReply, HttpRequest, ProxyRefused, ReplyLost, ReplyTimeout
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus, Throttled
from leaseway.ports.provider_requests import Delivery
from leaseway.testing.provider import Provider, provider
from leaseway.wiring import http_transport
from leaseway.worker import provider_http as flow
from leaseway.worker.calls.provider_call import wait_in_thread
from leaseway.worker.context import SyncHttp
from leaseway.worker.provider_http import PATIENCE_US, TRIES_MAX, FunctionTransport, HttpSettings

KEYLESS = HttpSettings(key_header=None)
IDEMPOTENT = ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"]
QUOTA = '{"error": {"code": "insufficient_quota"}}'


@pytest.fixture
def closed_url(unused_tcp_port: int) -> str:
    """A URL at which no server listens."""
    return f"http://127.0.0.1:{unused_tcp_port}"


# -- no request without admission -----------------------------------------------------------------------------------


async def test_no_request_leaves_when_the_gate_refuses(it: Provider, place: Place) -> None:
    """Limits and budgets depend on this order."""

    def refuse() -> None:
        raise LeaseLost("the job is no longer ours")

    place.door.when_asked = refuse
    with pytest.raises(LeaseLost):
        await place.http().get(it.url)
    assert it.arrivals == []


async def test_each_repetition_takes_leave_of_its_own(it: Provider, place: Place) -> None:
    """A provider counts every request that arrives, so each repetition must be admitted as well."""
    it.answer(502, times=2)
    reply = await place.http().get(it.url)
    assert reply.status_code == 200
    assert place.door.given == len(it.arrivals) == 3
    assert place.door.fates == [Delivery.ANSWERED] * 3


async def test_tokens_that_are_too_old_are_taken_anew(it: Provider, place: Place) -> None:
    """A permit past its deadline may fall into the next window, which other workers have filled."""
    place.door.checks = [False, False, True]
    await place.http().get(it.url)
    assert place.door.fates == [Delivery.NOT_SENT, Delivery.NOT_SENT, Delivery.ANSWERED]
    assert len(it.arrivals) == 1


async def test_tokens_that_grew_old_while_connecting_are_taken_anew(it: Provider, place: Place) -> None:
    """Connecting takes up to five seconds and permits last for one, so a check before connecting is not enough."""
    place.door.checks = [True, False, True]
    seen_at_leave: list[int] = []
    place.door.when_asked = lambda: seen_at_leave.append(len(it.arrivals))
    await place.http().get(it.url)
    assert place.door.fates == [Delivery.NOT_SENT, Delivery.ANSWERED]
    assert seen_at_leave == [0, 0]
    assert len(it.arrivals) == 1


async def test_tokens_that_are_always_too_old_end_in_an_error(it: Provider, place: Place) -> None:
    """Acquiring forever would use up the limit without sending a request."""
    place.door.checks = [False] * 1_000
    with pytest.raises(TransientError, match="expired"):
        await place.http().get(it.url)
    assert it.arrivals == []
    assert place.door.given == flow.GRANTS_MAX


async def test_a_lease_lost_while_connecting_stops_the_request(it: Provider, place: Place) -> None:
    """The check after connecting is the last one, so its exception must reach the handler unchanged."""
    place.door.checks = [True, False]

    def refuse_the_second() -> None:
        if place.door.given == 1:
            raise LeaseLost("the job is no longer ours")

    place.door.when_asked = refuse_the_second
    with pytest.raises(LeaseLost):
        await place.http().get(it.url)
    assert it.arrivals == []


async def test_redirects_are_not_followed(it: Provider, place: Place) -> None:
    """Each redirect would be a request without admission."""
    it.answer(302, {"Location": "/elsewhere"})
    reply = await place.http().get(it.url)
    assert reply.status_code == 302
    assert len(it.arrivals) == 1


async def test_cookies_of_one_job_are_not_sent_by_another(it: Provider, place: Place) -> None:
    """One HTTP client serves all tenants of a worker. The URL has a name, because clients keep no cookies of IP
    addresses anyway.
    """
    url = it.url.replace("127.0.0.1", "localhost")
    it.answer(200, {"Set-Cookie": "session=acme; Path=/"})
    await place.http(job="first").get(url)
    await place.http(job="second").get(url)
    assert "cookie" not in it.arrivals[1].headers


# -- feedback from responses ----------------------------------------------------------------------------------------


async def test_a_success_is_heard_too(it: Provider, place: Place) -> None:
    """Providers report the remaining quota in successful responses, before the first refusal."""
    it.answer(200, {"RateLimit": '"a";r=3;t=20'})
    await place.http().get(it.url)
    assert place.door.heard == [RateLimitStatus(remaining=3, reset_us=20 * SECOND_US)]


async def test_a_final_refusal_is_heard_and_not_repeated(it: Provider, place: Place) -> None:
    """Repeating the request does not restore the provider account's balance."""
    it.answer(429, {"Retry-After": "1"}, QUOTA, times=3)
    reply = await place.http().get(it.url)
    assert reply.status_code == 429
    assert len(it.arrivals) == 1
    assert place.door.heard == [RateLimitStatus(retry_after_us=SECOND_US, is_final=True)]


async def test_a_real_limit_is_heard_before_it_refuses(place: Place) -> None:
    """The fake provider must use headers that the parser understands."""
    async with provider(limits=["3 per 60 s", "100/hour"]) as it:
        for _ in range(3):
            await place.http().get(it.url)
        assert [said.remaining for said in place.door.heard] == [2, 1, 0]
        with pytest.raises(Throttled) as refused:
            await place.http().get(it.url)
    assert refused.value.retry_after_us is not None
    assert 0 < refused.value.retry_after_us <= 60 * SECOND_US
    assert place.door.heard[-1].throttled


# -- what is repeated -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("method", [*IDEMPOTENT, "POST", "PATCH"])
async def test_a_passing_failure_is_repeated(it: Provider, place: Place, method: str, status: int) -> None:
    """A restart of the provider's proxy must not fail a job."""
    it.answer(status)
    reply = await place.http().request(method, it.url)
    assert reply.status_code == 200
    assert len(it.arrivals) == 2


@pytest.mark.parametrize("status", [200, 301, 400, 401, 404, 408, 409, 422, 500, 501])
async def test_any_other_reply_is_returned_at_once(it: Provider, place: Place, status: int) -> None:
    """The response would be the same, and each repetition costs permits and money."""
    it.answer(status)
    reply = await place.http().get(it.url)
    assert reply.status_code == status
    assert len(it.arrivals) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("method", ["POST", "PATCH", "PURGE"])
async def test_without_a_key_what_may_have_been_done_is_not_repeated(
    it: Provider, place: Place, method: str, status: int
) -> None:
    """A second POST may be a second charge."""
    it.answer(status)
    reply = await place.http(KEYLESS).request(method, it.url)
    assert reply.status_code == status
    assert len(it.arrivals) == 1


async def test_the_caller_may_say_that_a_repetition_is_safe(it: Provider, place: Place) -> None:
    """The caller may know more about the provider than the HTTP method reveals."""
    it.answer(503)
    reply = await place.http(KEYLESS).post(it.url, retry=True)
    assert reply.status_code == 200


@pytest.mark.parametrize("status", [429, 503])
async def test_the_caller_may_forbid_repetitions(it: Provider, place: Place, status: int) -> None:
    """In this case the caller must get every response, including a refusal with a long wait."""
    it.answer(status, {"Retry-After": "3600"})
    reply = await place.http().get(it.url, retry=False)
    assert reply.status_code == status
    assert len(it.arrivals) == 1


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_the_last_failure_is_returned(it: Provider, place: Place, status: int) -> None:
    """The number of tries is bounded: a dead provider must not be called forever, and its job may fail."""
    it.answer(status, times=10)
    reply = await place.http().get(it.url)
    assert reply.status_code == status
    assert len(it.arrivals) == TRIES_MAX


async def test_a_connection_that_cannot_be_made_is_tried_again_and_then_raised(place: Place, closed_url: str) -> None:
    """Nothing was sent, so the permits must be returned and the hold voided."""
    with pytest.raises(ConnectFailed):
        await place.http().post(closed_url, json={})
    assert place.door.fates == [Delivery.NOT_SENT] * TRIES_MAX
    assert len(place.naps.seconds) == TRIES_MAX - 1


@pytest.mark.parametrize("method", IDEMPOTENT)
async def test_a_lost_reply_to_an_idempotent_request_is_repeated(it: Provider, place: Place, method: str) -> None:
    """Servers close idle connections at any time, and the next request on such a connection fails."""
    it.cut(after_reading=True)
    reply = await place.http().request(method, it.url)
    assert reply.status_code == 200
    assert place.door.fates == [Delivery.UNKNOWN, Delivery.ANSWERED]


@pytest.mark.parametrize("after_reading", [True, False])
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_a_lost_reply_to_a_post_is_not_repeated(
    it: Provider, place: Place, method: str, after_reading: bool
) -> None:
    """The request may have been executed, and the provider may ignore the idempotency key. It must be charged, not
    refunded.
    """
    it.cut(after_reading=after_reading)
    with pytest.raises(ReplyLost):
        await place.http().request(method, it.url, json={"amount": 1})
    assert len(it.arrivals) == (1 if after_reading else 0)
    assert place.door.fates == [Delivery.UNKNOWN]


async def test_a_silent_provider_is_not_asked_again(it: Provider, place: Place) -> None:
    """The next try would take as long, and the request may still be running."""
    it.hang(times=3)
    with pytest.raises(ReplyTimeout):
        await place.http().get(it.url, timeout=0.5)
    assert len(it.arrivals) == 1
    assert place.door.fates == [Delivery.UNKNOWN]


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "nowhere", "/path"])
async def test_an_address_that_cannot_work_is_not_tried_again(place: Place, url: str) -> None:
    """The caller's mistake does not disappear by repeating the request."""
    with pytest.raises(BadValue, match="url"):
        await place.http().get(url)
    assert place.door.given == 0


async def test_what_a_proxy_refuses_was_not_sent(it: Provider) -> None:
    """The CONNECT request to the proxy is a request as well, but it never reaches the provider and must not be
    charged.
    """
    place = Place(AiohttpTransport(proxy=it.url))
    it.answer(403)
    with pytest.raises(ProxyRefused):
        await place.http().get("https://provider.example/")
    assert [arrival.method for arrival in it.arrivals] == ["CONNECT"]
    assert place.door.fates == [Delivery.NOT_SENT]
    await place.wire.close()


# -- how long it waits ------------------------------------------------------------------------------------------------


async def test_pauses_grow_and_are_spread_by_chance(it: Provider, place: Place) -> None:
    """Clients that failed together must not retry together."""
    it.answer(502, times=2)
    await place.http().get(it.url)
    assert place.naps.seconds == [0.25, 0.5]
    assert flow.retry_pause_us(None, 1, 0.0) == 0
    assert flow.retry_pause_us(None, 60, 0.999) < flow.PAUSE_US_MAX


async def test_a_short_wait_is_slept(it: Provider, place: Place) -> None:
    """Releasing the job would cost more than the wait."""
    it.answer(429, {"Retry-After": "2"})
    reply = await place.http().get(it.url)
    assert reply.status_code == 200
    assert place.naps.seconds == [2.25]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_wait_beyond_our_patience_gives_the_job_back(
    it: Provider, place: Place, method: str, status: int
) -> None:
    """A handler that sleeps for an hour would occupy its slot, its lease and its in-flight call."""
    it.answer(status, {"Retry-After": "3600"})
    with pytest.raises(Throttled, match="3600 s") as refused:
        await place.http().request(method, it.url)
    assert refused.value.retry_after_us == 3_600 * SECOND_US
    assert place.naps.seconds == []
    assert len(it.arrivals) == 1


@pytest.mark.parametrize("answer", [(429, {"Retry-After": "3600"}, 1), (429, {}, TRIES_MAX)])
async def test_a_job_that_has_made_calls_waits_and_sends_the_refused_request_again(
    it: Provider, place: Place, answer: tuple[int, dict[str, str], int]
) -> None:
    """Giving the job back would restart it, and the calls before this one would be made again."""
    status, headers, times = answer
    it.answer(status, headers, times=times)
    place.door.has_called = True
    assert (await place.http().get(it.url)).status_code == 200
    assert len(it.arrivals) == times + 1
    ((why, seconds),) = place.door.waits
    assert "status 429" in why
    assert seconds == (3_600 if headers else 8)


async def test_the_border_of_patience_is_still_slept(it: Provider, place: Place) -> None:
    """A readable example."""
    it.answer(429, {"Retry-After": str(PATIENCE_US // SECOND_US)})
    assert (await place.http().get(it.url)).status_code == 200
    it.answer(429, {"Retry-After": "2"})
    with pytest.raises(Throttled):
        await place.http(HttpSettings(patience_us=SECOND_US)).get(it.url)


async def test_a_provider_that_keeps_refusing_gets_the_job_back_without_an_attempt(it: Provider, place: Place) -> None:
    """Being limited is not the job's failure, even if no single wait was long."""
    it.answer(429, times=TRIES_MAX)
    with pytest.raises(Throttled) as refused:
        await place.http().get(it.url)
    assert refused.value.retry_after_us is None
    assert len(it.arrivals) == TRIES_MAX


# -- keys -------------------------------------------------------------------------------------------------------------


async def test_a_repeated_post_carries_the_same_key_in_every_try_and_attempt(it: Provider, place: Place) -> None:
    """The provider can recognize a repeated request only by its key."""
    it.answer(503)
    await place.http().post(it.url, json={"amount": 1})
    await place.http().post(it.url, json={"amount": 1})
    keys = {arrival.idempotency_key for arrival in it.arrivals}
    assert len(it.arrivals) == 3
    assert len(keys) == 1
    assert keys.pop().startswith("job:")


async def test_different_posts_of_a_job_never_share_a_key(it: Provider, place: Place) -> None:
    """The provider would answer the second request with the response to the first and never execute it."""
    http = place.http()
    await http.post(it.url, json={"amount": 1})
    await http.post(it.url, json={"amount": 2})
    await http.post(it.url + "/other", json={"amount": 1})
    await http.post(it.url, params={"q": "a"}, json={"amount": 1})
    await http.patch(it.url, json={"amount": 1})
    await http.post(it.url, json={"amount": 1})
    await place.http(job="other").post(it.url, json={"amount": 1})
    assert len({arrival.idempotency_key for arrival in it.arrivals}) == 7
    assert it.duplicates == 0


async def test_a_post_keeps_its_key_when_an_earlier_one_is_left_out(it: Provider, place: Place) -> None:
    """The next attempt may skip a request; with keys numbered by order alone, the second request would be taken for the
    first.
    """
    first, second = place.http(), place.http()
    await first.post(it.url, json={"amount": 1})
    await first.post(it.url, json={"amount": 2})
    await second.post(it.url, json={"amount": 2})
    keys = [arrival.idempotency_key for arrival in it.arrivals]
    assert keys[1] == keys[2]


async def test_a_step_names_the_key_and_a_key_of_the_callers_own_wins(it: Provider, place: Place) -> None:
    """A handler that resumes in the middle of equal requests must be able to tell them apart."""
    http = place.http(HttpSettings(key_header="idempotency-key"))
    await http.post(it.url, step="charge")
    await http.post(it.url, headers={"IDEMPOTENCY-KEY": "mine"})
    assert [arrival.idempotency_key for arrival in it.arrivals] == ["job:charge", "mine"]


async def test_other_methods_carry_no_key(it: Provider, place: Place) -> None:
    """They do not need a key, and some providers refuse unexpected headers."""
    for method in IDEMPOTENT:
        await place.http().request(method, it.url)
    assert {arrival.idempotency_key for arrival in it.arrivals} == {""}


# -- request options ------------------------------------------------------------------------------------------------


async def test_everything_that_is_given_arrives(it: Provider, place: Place) -> None:
    """A readable example."""
    http = place.http()
    reply = await http.post(it.url + "/a", params={"q": "x y"}, headers={"X-Api-Key": "k"}, json={"n": 1})
    assert reply.json()["path"] == "/a?q=x+y"
    assert reply.json()["body"] == '{"n":1}'
    assert it.arrivals[0].key == "k"
    assert (await http.put(it.url, content="text")).json()["body"] == "text"
    assert (await http.patch(it.url, data={"a": "b"})).json()["body"] == "a=b"
    assert (await http.delete(it.url)).status_code == 200
    assert (await http.head(it.url)).content == b""
    assert (await http.options(it.url, timeout=timedelta(seconds=5))).status_code == 200


async def test_content_that_cannot_be_sent_twice_is_refused(it: Provider, place: Place) -> None:
    """The second try would send an empty body, and the provider would accept it as the whole."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"once"

    with pytest.raises(BadValue, match="content"):
        await place.http().put(it.url, content=pieces())


@pytest.mark.parametrize("seconds", [0, -1, 10**9, "5", True])
async def test_an_impossible_timeout_is_refused_by_name(place: Place, seconds: float) -> None:
    """Without a timeout, a request could wait forever."""
    with pytest.raises(BadValue, match="timeout"):
        await place.http().get("http://127.0.0.1:1", timeout=seconds)
    assert place.door.given == 0


def test_without_the_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP client is an optional dependency that most jobs do not need."""
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "leaseway.aiohttp_transport")
    with pytest.raises(UsageError, match=r"pip install 'leaseway\[http\]'"):
        http_transport()


# -- shutdown -------------------------------------------------------------------------------------------------------


async def test_a_handler_that_is_stopped_hands_its_pass_back(it: Provider, place: Place) -> None:
    """Otherwise each cancelled job would occupy an in-flight call until it expires. The request was sent, so it is
    charged.
    """
    it.hang()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(place.http().get(it.url))
        await it.has_seen(1)
        task.cancel()
    assert task.cancelled()
    assert place.door.fates == [Delivery.UNKNOWN]


async def test_a_closed_wire_keeps_no_connection_and_can_be_closed_again(it: Provider, place: Place) -> None:
    """A worker that stops must not leave sockets behind, and closing must also work if no request was ever sent."""
    await AiohttpTransport().close()
    await place.http().get(it.url)
    assert it.connections == 1
    await place.wire.close()
    await place.wire.close()
    async with asyncio.timeout(30):
        await it.has_no_connection()


async def test_one_client_serves_all_jobs_of_a_worker(it: Provider, place: Place) -> None:
    """Each new connection costs round trips, during which permits may expire."""
    await place.http(job="first").get(it.url)
    await place.http(job="second").get(it.url)
    assert it.connections == 1


async def test_a_plain_function_can_call_too(it: Provider, place: Place) -> None:
    """Handlers that are not async run in threads without an event loop."""
    plain = SyncHttp(place.http(), partial(wait_in_thread, asyncio.get_running_loop()))
    threads: list[str] = []

    def work() -> list[int]:
        threads.append(threading.current_thread().name)
        calls = (plain.get, plain.head, plain.options, plain.put, plain.delete, plain.post, plain.patch)
        return [call(it.url).status_code for call in calls]

    assert await asyncio.to_thread(work) == [200] * 7
    assert threads != [threading.main_thread().name]


async def test_a_transport_of_ones_own_works_without_a_trace() -> None:
    """Users test their jobs with a custom transport. A request whose sending cannot be observed counts as sent."""

    def answer(request: HttpRequest) -> HttpReply:
        if request.url == "http://x/away":
            raise ConnectFailed("no")
        if request.url == "http://x/broken":
            raise ReplyLost("no")
        return HttpReply(200, text=request.method)

    place = Place(FunctionTransport(answer))
    assert (await place.http().get("http://x/")).text == "GET"
    with pytest.raises(ConnectFailed):
        await place.http().get("http://x/away", retry=False)
    with pytest.raises(ReplyLost):
        await place.http().get("http://x/broken", retry=False)
    assert place.door.fates == [Delivery.ANSWERED, Delivery.NOT_SENT, Delivery.UNKNOWN]
    await place.wire.close()
