"""Live updates: each authorized client sees every change over each transport, and a disconnect loses nothing."""

import asyncio
from typing import Any

import pytest
from tests.api.every_store import store_url as store_url
from tests.api.keys import bearer, key_for, operator_of
from tests.api.live_clients import (
    TRANSPORTS,
    LiveClient,
    by_polling,
    by_socket,
    by_stream,
    change_settings,
    has,
    socket,
    socket_frames,
    submit_job,
)
from tests.api.running_service import Served, run_service

from leaseway import App, Limit


@pytest.fixture(params=list(TRANSPORTS))
def way(request: pytest.FixtureRequest) -> Any:
    """WebSocket, event stream and polling must keep the same guarantees."""
    return TRANSPORTS[request.param]


async def test_a_job_is_seen_from_its_submission_to_its_end(served: Served, way: Any) -> None:
    """The dashboard depends on it. Lanes and totals must change together with the job."""
    async with way(served.url) as watcher:
        await watcher.frame()
        assert watcher.events[0] == {"kind": "reset"}
        job = await submit_job(served)
        await watcher.until(has(job, "pending"))
        await served.settle()
        await watcher.until(has(job, "done"))
        await watcher.until(lambda seen: seen.totals["done"] == 1)
        assert watcher.resets == 1
    shown = (await served.client.get(f"/v1/jobs/{job}")).json()
    assert watcher.jobs[job] == {name: shown[name] for name in watcher.jobs[job]}
    lanes = [event["lane"] for event in watcher.events if event["kind"] == "lane"]
    assert (lanes[-1]["queue"], lanes[-1]["done"]) == ("default", 1)


# -- resuming after a disconnect ------------------------------------------------------------------------------------


async def test_a_cut_loses_nothing_even_at_another_process(served: Served, way: Any, store_url: str) -> None:
    """After a restart, a proxy timeout or a lost network, a client must get every change, also from another process."""
    other_app = App(store_url)
    async with run_service(other_app) as other:
        async with by_polling(other.url) as elsewhere:
            await elsewhere.frame()  # it has been polling for some time
            await forget_margin(other)
        async with way(served.url) as watcher:
            await watcher.frame()
            before = await submit_job(served)
            await watcher.until(has(before, "pending"))
        jobs = [await submit_job(served) for _ in range(3)]
        await served.settle()
        async with way(other.url, after=watcher.seq) as again:
            await again.until(lambda seen: all(seen.state_of(job) == "done" for job in [before, *jobs]))
            await again.until(lambda seen: seen.totals.get("done") == 4)
        assert again.resets == 0


async def forget_margin(served: Served) -> None:
    """Behave as if the process had been polling for longer than the margin."""
    served.service.live.poller.log._horizon = 1


async def test_who_comes_back_to_the_same_process_is_told_only_what_differs(served: Served) -> None:
    """If every reconnect caused a full snapshot, a busy service would send snapshots all the time."""
    async with by_socket(served.url) as watcher:
        old = await submit_job(served)
        await watcher.until(has(old, "pending"))
        await watcher.until(lambda seen: seen.totals["ready"] == 1)
    new = await submit_job(served)
    async with by_socket(served.url, after=watcher.seq) as again:
        await again.until(has(new, "pending"))
    assert (again.resets, again.state_of(old)) == (0, None)


async def test_browsers_go_on_by_the_id_of_the_last_event(served: Served) -> None:
    """Browsers send the id in a header on reconnect; the URL is still that of the first request."""
    async with by_stream(served.url) as watcher:
        await watcher.frame()
    job = await submit_job(served)
    async with by_stream(served.url, {"Last-Event-ID": str(watcher.seq)}, after=1) as again:
        await again.until(has(job, "pending"))
    assert again.resets == 0


@pytest.mark.parametrize("after", ["1", "99999999999999999", "-5", "x", "9" * 40])
async def test_a_number_that_says_nothing_is_answered_with_everything(served: Served, after: str) -> None:
    """If the number is too old, in the future or malformed, the client must get a full snapshot instead of
    wrong data.
    """
    job = await submit_job(served)
    frame = (await served.client.get("/v1/events", params={"after": after})).json()
    assert frame["events"][0] == {"kind": "reset"}
    assert job in [event["job"]["id"] for event in frame["events"] if event["kind"] == "job"]


async def test_a_poll_without_news_waits_and_then_says_so(served: Served) -> None:
    """A polling client must neither miss a change nor send requests in a tight loop."""
    frame = (await served.client.get("/v1/events")).json()
    again = (await served.client.get("/v1/events", params={"after": frame["seq"], "wait_seconds": 0.5})).json()
    assert again["events"] == []
    assert again["seq"] >= frame["seq"]
    asking = asyncio.ensure_future(first_job_after(served, again["seq"]))
    job = await submit_job(served)
    assert await asking == job


async def first_job_after(served: Served, seq: int) -> str:
    """Poll until a frame contains a job; frames before it may contain only changed counters."""
    async with asyncio.timeout(30):
        while True:
            query = {"after": seq, "wait_seconds": 20}
            frame = (await served.client.get("/v1/events", params=query, timeout=30)).json()
            jobs = [each["job"]["id"] for each in frame["events"] if each["kind"] == "job"]
            if jobs:
                return str(jobs[0])
            seq = frame["seq"]


# -- authorization --------------------------------------------------------------------------------------------------


async def test_nobody_sees_anything_of_another_tenant(served_with_keys: Served, way: Any) -> None:
    """Jobs, lanes and totals of another tenant are confidential; limits and budgets are for operators only."""
    served = served_with_keys
    acme, other, operator = await key_for(served, "acme"), await key_for(served, "other"), await operator_of(served)
    await served.service.world.limiter.definitions.declare([Limit("maps", "5/second").definition])
    async with way(served.url, bearer(acme)) as mine, way(served.url, bearer(operator)) as all_:
        await mine.frame()
        theirs = await submit_job(served, **bearer(other))
        ours = await submit_job(served, **bearer(acme))
        await mine.until(has(ours, "pending"))
        await mine.until(lambda seen: seen.totals["ready"] == 1)
        await all_.until(lambda seen: {ours, theirs} <= set(seen.jobs) and seen.totals["ready"] == 2)
        await all_.until(lambda seen: any(event["kind"] == "limit" for event in seen.events))
    assert theirs not in mine.jobs
    assert {event["kind"] for event in mine.events} == {"reset", "totals", "lane", "job"}
    assert {event["lane"]["tenant"] for event in mine.events if event["kind"] == "lane"} == {"acme"}


async def test_an_operator_may_look_at_one_tenant_and_nobody_else_may(served_with_keys: Served) -> None:
    """A tenant's name in the URL must not give access that the credential does not give."""
    served = served_with_keys
    acme, operator = await key_for(served, "acme"), await operator_of(served)
    refused = await served.client.get("/v1/events", params={"tenant": "other"}, headers=bearer(acme))
    assert refused.status_code == 403
    with pytest.raises(Exception, match="403"):
        async with by_socket(served.url, bearer(acme), tenant="other"):
            pass
    job = await submit_job(served, **bearer(acme))
    async with by_socket(served.url, bearer(operator), tenant="acme") as watcher:
        await watcher.until(has(job, "pending"))
        assert watcher.totals["ready"] == 1
    async with by_socket(served.url, bearer(operator), tenant="other") as watcher:
        await watcher.frame()
        assert watcher.jobs == {}


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer lw_aaaaaaaaaaaa_" + "A" * 27}])
async def test_without_a_credential_nothing_is_told(served_with_keys: Served, headers: dict[str, str]) -> None:
    """Live routes need authentication like all other routes."""
    served = served_with_keys
    for accept in ("application/json", "text/event-stream"):
        answer = await served.client.get("/v1/events", headers={**headers, "Accept": accept})
        assert answer.status_code == 401
    assert (await served.client.post("/v1/tickets", headers=headers)).status_code == 401
    with pytest.raises(Exception, match=r"40[13]"):
        async with by_socket(served.url, headers):
            pass


# -- tickets --------------------------------------------------------------------------------------------------------


async def test_a_ticket_opens_once_at_whichever_process(served_with_keys: Served, store_url: str) -> None:
    """A ticket is part of a URL, and URLs end up in logs, so a logged ticket must be useless."""
    served = served_with_keys
    acme = await key_for(served, "acme")
    made = await served.client.post("/v1/tickets", headers=bearer(acme))
    assert made.status_code == 201
    ticket = made.json()["ticket"]
    job = await submit_job(served, **bearer(acme))
    other_app = App(store_url)
    async with run_service(other_app, auth=True) as other:
        async with by_socket(other.url, ticket=ticket) as watcher:
            await watcher.until(has(job, "pending"))
        for url in (served.url, other.url):
            with pytest.raises(Exception, match="401"):
                async with by_socket(url, ticket=ticket):
                    pass


async def test_of_many_who_use_a_ticket_at_once_one_gets_in(served_with_keys: Served) -> None:
    """Concurrent requests must not share one ticket."""
    served = served_with_keys
    made = await served.client.post("/v1/tickets", headers=bearer(await key_for(served)))

    async def get_in() -> bool:
        try:
            async with by_socket(served.url, ticket=made.json()["ticket"]) as watcher:
                await watcher.frame()
        except Exception:  # noqa: BLE001 - whatever it is, it did not get in
            return False
        return True

    assert sorted(await asyncio.gather(*(get_in() for _ in range(8)))) == [False] * 7 + [True]


async def test_a_ticket_is_no_session(served_with_keys: Served) -> None:
    """Tickets are stored beside sessions, so a leaked ticket must not work as a session cookie."""
    served = served_with_keys
    made = await served.client.post("/v1/tickets", headers=bearer(await key_for(served)))
    for cookie in (made.json()["ticket"], "ticket:" + made.json()["ticket"]):
        answer = await served.client.get("/v1/jobs", headers={"Cookie": f"leaseway_session={cookie}"})
        assert answer.status_code == 401


# -- following ------------------------------------------------------------------------------------------------------


async def test_a_followed_job_is_seen_behind_any_number_of_others(served: Served) -> None:
    """By default a client gets the newest jobs only, but the page of a job must stay up to date."""
    change_settings(served, newest=1, ended=0, unfinished=0)
    job = await submit_job(served)
    await submit_job(served)
    for way in (by_stream, by_polling):
        async with way(served.url, follow=job) as watcher:
            await watcher.until(has(job, "pending"))
    async with socket(served.url) as line:
        watcher = LiveClient(socket_frames(line))
        await watcher.frame()
        await line.send(f'{{"follow": ["{job}"]}}')
        await served.settle()
        await watcher.until(has(job, "done"))
        await served.client.delete(f"/v1/jobs/{job}")
        await watcher.until(lambda seen: any(each.get("gone") and each["job"]["id"] == job for each in seen.events))


async def test_of_a_job_that_was_told_the_end_is_told(served: Served) -> None:
    """The job was among the newest for a moment only. Otherwise the dashboard would show it as pending forever."""
    change_settings(served, newest=1, ended=0)
    async with by_socket(served.url) as watcher:
        jobs = [await submit_job(served)]
        await watcher.until(has(jobs[0], "pending"))
        jobs.append(await submit_job(served))
        await watcher.until(has(jobs[1], "pending"))
        await served.settle()
        await watcher.until(lambda seen: all(seen.state_of(job) == "done" for job in jobs))


async def test_following_anothers_job_tells_nothing(served_with_keys: Served) -> None:
    """An id is not a credential, and the response must not even reveal that the job exists."""
    served = served_with_keys
    acme, other = await key_for(served, "acme"), await key_for(served, "other")
    theirs = await submit_job(served, **bearer(other))
    async with by_socket(served.url, bearer(acme), follow=theirs) as watcher:
        ours = await submit_job(served, **bearer(acme))
        await watcher.until(has(ours, "pending"))
        assert set(watcher.jobs) == {ours}
