"""/v1/jobs, over every store."""

import asyncio
from typing import Any

import pytest
from tests.api.every_store import store_url as store_url
from tests.api.running_service import Served, run_service

from leaseway import App
from leaseway.api.pagination import encode_cursor


async def submitted(served: Served, **body: Any) -> str:
    answer = await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}, **body})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def seen(served: Served, id_: str) -> Any:
    return (await served.client.get(f"/v1/jobs/{id_}")).json()


# -- submitting -----------------------------------------------------------------------------------------------------


async def test_a_job_is_submitted_run_and_shown(served: Served) -> None:
    """This is the path that every client takes first."""
    answer = await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1, "b": 2}, "priority": 3})
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    assert "idempotent-replayed" not in answer.headers
    await served.settle()
    job = (await served.client.get(answer.headers["location"])).json()
    assert (job["state"], job["result"], job["priority"], job["tenant"]) == ("done", 3, 3, "default")
    assert [event["what"] for event in job["timeline"]] == ["submitted", "done"]
    assert job["created_at"].endswith("Z")


async def test_what_a_submission_may_say(served: Served) -> None:
    """An option that is accepted and ignored would run a job at the wrong time or in the wrong queue."""
    id_ = await submitted(
        served, queue="mail", priority=-5, delay_seconds=3_600, attempts=2, timeout_seconds=1.5, key="k"
    )
    job = await seen(served, id_)
    assert (job["queue"], job["priority"], job["attempts_max"], job["timeout_seconds"]) == ("mail", -5, 2, 1.5)
    later = await seen(served, await submitted(served, run_at="2100-01-01T00:00:00Z"))
    assert later["run_at"] == "2100-01-01T00:00:00.000000Z"


NOT_HIS = ("state", "attempts_max", "lease_until", "lease_seconds", "tenant", "cost", "id", "fence", "result")


async def test_a_client_cannot_say_what_is_not_his_to_say(served: Served) -> None:
    """A client that could set the tenant or the state could act for others."""
    for field in NOT_HIS:
        answer = await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}, field: "x"})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
        assert field in answer.json()["detail"]


WRONG: list[tuple[Any, str]] = [
    ({"kind": "nobody"}, "/kind"),
    ({"kind": "add"}, "/arguments"),
    ({"kind": "add", "arguments": {"a": "x"}}, "/arguments/a"),
    ({"kind": "add", "arguments": {"a": 1, "c": 2}}, "/arguments"),
    ({"kind": "add", "arguments": {"a": 1}, "delay_seconds": -1}, "/delay_seconds"),
    ({"kind": "add", "arguments": {"a": 1}, "timeout_seconds": 0}, "/timeout_seconds"),
    ({"kind": "add", "arguments": {"a": 1}, "priority": 5_000}, "/priority"),
    ({"kind": "add", "arguments": {"a": 1}, "run_at": "2100-01-01T00:00:00"}, "/run_at"),
    ({"kind": "add", "arguments": {"a": 1}, "queue": "a\nb"}, "/queue"),
    ({"kind": "add", "arguments": {"a": 1}, "attempts": True}, "/attempts"),
]


async def test_an_error_names_its_place_in_the_body(served: Served) -> None:
    """A client developer must learn which field to change."""
    for body, pointer in WRONG:
        answer = await served.client.post("/v1/jobs", json=body)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == pointer, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


async def test_without_an_app_any_kind_is_taken(store_url: str) -> None:
    """A service without the app's code cannot know its kinds, but must protect its own."""
    async with run_service(App(store_url)) as served:
        refused = await served.client.post("/v1/jobs", json={"kind": "import:shop:finish", "arguments": {"run": "r"}})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/kind")
        answer = await served.client.post("/v1/jobs", json={"kind": "anything", "arguments": {"x": [1, {"y": None}]}})
        assert answer.status_code == 202
        assert (await seen(served, answer.json()["id"]))["payload"] == {"x": [1, {"y": None}]}


# -- idempotency ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ['"order-1"', "order-1"])
async def test_the_same_request_again_is_answered_as_the_first(served: Served, header: str) -> None:
    """A client that lost the reply must be able to repeat the request without a second job."""
    body, headers = {"kind": "add", "arguments": {"a": 1}, "priority": 2}, {"Idempotency-Key": header}
    first = await served.client.post("/v1/jobs", json=body, headers=headers)
    await served.settle()
    again = await served.client.post("/v1/jobs", json=body, headers=headers)
    assert (again.status_code, again.content) == (202, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    for other in ({"arguments": {"a": 2}}, {"priority": 3}, {"kind": "broken", "arguments": {}}):
        answer = await served.client.post("/v1/jobs", json={**body, **other}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "key_conflict")
    assert len((await served.client.get("/v1/jobs")).json()["items"]) == 1


async def test_two_hundred_at_once_with_one_key_make_one_job(served: Served) -> None:
    """Repeated requests arrive at the same time when a client times out under load."""

    async def post(number: int) -> tuple[int, str, bool]:
        arguments = {"a": 1 if number % 4 else 2}
        answer = await served.client.post(
            "/v1/jobs", json={"kind": "add", "arguments": arguments}, headers={"Idempotency-Key": '"k"'}
        )
        return answer.status_code, answer.json().get("id", ""), "idempotent-replayed" in answer.headers

    answers = await asyncio.gather(*map(post, range(200)))
    accepted = [answer for answer in answers if answer[0] == 202]
    assert len({id_ for _, id_, _ in accepted}) == 1
    assert [replayed for _, _, replayed in accepted].count(False) == 1
    assert {status for status, _, _ in answers} == {202, 422}
    assert len((await served.client.get("/v1/jobs")).json()["items"]) == 1


UNREADABLE = ('"', '""', '"a', "a b", '"' + "x" * 201 + '"', '"a\\x"', '"a";p=1', '"a", "b"')


async def test_a_key_that_cannot_be_read_is_no_key(served: Served) -> None:
    """If an unreadable key were ignored, a request that is sent twice would create two jobs."""
    for header in UNREADABLE:
        answer = await served.client.post(
            "/v1/jobs", json={"kind": "add", "arguments": {"a": 1}}, headers={"Idempotency-Key": header}
        )
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_idempotency_key")


async def test_the_key_may_stand_in_the_body_but_not_say_something_else(served: Served) -> None:
    """With two different keys, it is unclear which request is repeated."""
    id_ = await submitted(served, key="k")
    body = {"kind": "add", "arguments": {"a": 1}, "key": "k"}
    again = await served.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": '"k"'})
    assert again.json()["id"] == id_
    other = await served.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": '"other"'})
    assert other.status_code == 422


async def test_python_and_http_may_send_the_same_job(served: Served) -> None:
    """A job must not run twice because a retry came through the other interface."""
    id_ = await submitted(served, key="k")
    again = await served.app.submit(served.app.bind("add", {"a": 1}, key="k"))
    assert (again.id, again.replayed) == (id_, True)


# -- bulk submission ------------------------------------------------------------------------------------------------


async def test_many_are_submitted_each_with_its_own_answer(served: Served) -> None:
    """One wrong item must not reject or hide the others."""
    await submitted(served, key="taken")
    good, key = {"kind": "add", "arguments": {"a": 1}}, {"key": "k"}
    bad = [
        {"kind": "nobody"},
        {"kind": "add", "arguments": {"a": 1}, "tenant": "x"},
        7,
        {**good, "key": "taken", "queue": "q"},
    ]
    answer = await served.client.post("/v1/jobs/bulk", json={"items": [good, *bad, {**good, **key}, {**good, **key}]})
    items = answer.json()["items"]
    assert [item["status"] for item in items] == [202, 422, 422, 422, 422, 202, 202]
    assert [item["problem"]["code"] for item in items[1:5]] == ["unknown_kind", "invalid", "invalid", "key_conflict"]
    assert items[5]["id"] == items[6]["id"]
    assert [items[5]["replayed"], items[6]["replayed"]] == [False, True]
    assert len((await served.client.get("/v1/jobs")).json()["items"]) == 3


async def test_a_thousand_go_in_one_call_and_not_one_more(served: Served) -> None:
    """A batch without a bound would hold the store's write lock for too long."""
    items = [{"kind": "add", "arguments": {"a": number}} for number in range(1_001)]
    assert (await served.client.post("/v1/jobs/bulk", json={"items": items})).status_code == 422
    assert (await served.client.post("/v1/jobs/bulk", json={"items": []})).status_code == 422
    answer = await served.client.post("/v1/jobs/bulk", json={"items": items[:1_000]})
    assert len({item["id"] for item in answer.json()["items"]}) == 1_000


# -- reading --------------------------------------------------------------------------------------------------------


async def test_a_list_is_read_page_by_page(served: Served) -> None:
    """A job that two pages skip would never be seen."""
    ids = [await submitted(served, queue="a" if number % 2 else "b") for number in range(7)]
    found, cursor, pages = [], None, 0
    while True:
        query = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = (await served.client.get("/v1/jobs", params=query)).json()
        found += [item["id"] for item in page["items"]]
        pages, cursor = pages + 1, page["next"]
        if cursor is None:
            break
    assert (found, pages) == (ids[::-1], 3)
    only = (await served.client.get("/v1/jobs", params={"queue": "a", "state": ["pending", "failed"]})).json()
    assert [item["id"] for item in only["items"]] == ids[1::2][::-1]


async def test_what_is_long_is_not_shown_in_a_list(served: Served) -> None:
    """Two hundred jobs of a quarter of a megabyte each would make a response of 50 MB."""
    text = "x" * 5_000
    answer = await served.client.post("/v1/jobs", json={"kind": "broken", "arguments": {"text": text}})
    (item,) = (await served.client.get("/v1/jobs")).json()["items"]
    assert (item["payload"], item["shortened"]) == (None, ["payload"])
    assert (await seen(served, answer.json()["id"]))["payload"] == {"text": text}


def another(letter: str) -> str:
    return "B" if letter == "A" else "A"


async def test_a_cursor_is_ours_or_it_is_nothing(served: Served) -> None:
    """A forged cursor would let a caller choose the position in the list."""
    for _ in range(3):
        await submitted(served)
    cursor = (await served.client.get("/v1/jobs", params={"limit": 1})).json()["next"]
    forged = [
        cursor[:-3] + another(cursor[-3]) + cursor[-2:],
        another(cursor[0]) + cursor[1:],
        "x",
        "",
        "ä",
        "a" * 1_000,
        encode_cursor(b"guess", "0" * 26, "jobs local"),
    ]
    for text in forged:
        answer = await served.client.get("/v1/jobs", params={"cursor": text})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_cursor"), text


SENSELESS = (
    "limit=0",
    "limit=201",
    "limit=x",
    "state=lost",
    "kind=%00",
    "queue=",
    "tenant=a%0Ab",
    "error_code=" + "x" * 201,
)
ON_ONE = (("GET", ""), ("GET", "/why"), ("GET", "/result"), ("POST", "/cancel"), ("POST", "/retry"), ("DELETE", ""))


async def test_a_question_that_makes_no_sense_is_refused(served: Served) -> None:
    """An ignored filter would show jobs that the user did not mean."""
    for query in SENSELESS:
        answer = await served.client.get(f"/v1/jobs?{query}")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


async def test_what_is_not_there_is_not_found(served: Served) -> None:
    """Strange ids must not reach the store or the file system as something else."""
    for id_ in ("x", "0" * 26, "%00", "a" * 300, "..%2f", "0" * 25 + "%00"):
        for method, path in ON_ONE:
            answer = await served.client.request(method, f"/v1/jobs/{id_}{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), (method, path)


async def test_failures_are_shown_with_their_attempts(served: Served) -> None:
    """The error of each attempt is what a developer needs to correct the job."""
    answer = await served.client.post("/v1/jobs", json={"kind": "broken", "arguments": {"text": "<b>no</b>"}})
    await served.settle()
    job = await seen(served, answer.json()["id"])
    assert (job["state"], job["last_error_code"]) == ("failed", "ValueError")
    assert (job["errors"][0]["attempt"], job["errors"][0]["message"]) == (1, "<b>no</b>")
    assert [event["what"] for event in job["timeline"]] == ["submitted", "failed_attempt", "failed"]
    found = (await served.client.get("/v1/jobs", params={"error_code": "ValueError"})).json()["items"]
    assert [item["id"] for item in found] == [job["id"]]


async def test_why_says_what_a_job_waits_for(served: Served) -> None:
    """A pending job alone does not say whether anything has to be done."""

    async def why(id_: str) -> Any:
        return (await served.client.get(f"/v1/jobs/{id_}/why")).json()

    ready, later = await submitted(served), await submitted(served, delay_seconds=60)
    assert (await why(ready))["code"] == "ready"
    assert (await why(later))["code"] == "scheduled"
    assert (await why(later))["until"] is not None
    await served.client.post(
        f"/v1/jobs/{later}/cancel"
    )  # a worker that runs until the queue is empty would wait for this job
    await served.settle()
    assert (await why(ready))["code"] == "done"


async def test_a_result_is_waited_for(served: Served) -> None:
    """Without a wait, clients poll and load the service."""
    id_ = await submitted(served)
    early = await served.client.get(f"/v1/jobs/{id_}/result")
    assert (early.status_code, early.json()["code"], early.json()["state"]) == (409, "not_finished", "pending")
    waiting = asyncio.ensure_future(served.client.get(f"/v1/jobs/{id_}/result", params={"wait_seconds": 30}))
    await served.settle()
    assert (await waiting).json() == {"id": id_, "state": "done", "result": 2}


# -- changing -------------------------------------------------------------------------------------------------------


async def test_a_job_that_waits_for_its_time_is_brought_forward(served: Served) -> None:
    """An operator who has removed the reason for a wait must not have to wait for the end of it."""
    body = {"kind": "add", "arguments": {"a": 1, "b": 2}, "delay_seconds": 3_600}
    id_ = (await served.client.post("/v1/jobs", json=body)).json()["id"]
    assert (await served.client.post(f"/v1/jobs/{id_}/run-now")).json() == {"id": id_, "answer": "ready"}
    await served.settle()
    assert (await served.client.get(f"/v1/jobs/{id_}/result")).json()["result"] == 3


async def test_a_job_is_cancelled_retried_and_discarded(served: Served) -> None:
    """A change in the wrong state would run a job twice or lose it."""
    id_ = await submitted(served)
    post, path = served.client.post, f"/v1/jobs/{id_}"
    assert (await post(f"{path}/retry")).json()["code"] == "not_retryable"
    assert (await served.client.delete(path)).json()["code"] == "not_finished"
    assert (await post(f"{path}/run-now")).json()["code"] == "not_waiting"
    assert (await post(f"{path}/cancel")).json() == {"id": id_, "answer": "cancelled"}
    assert (await post(f"{path}/cancel")).json() == {"id": id_, "answer": "finished"}
    assert (await served.client.get(f"{path}/result")).json()["code"] == "no_result"
    assert (await post(f"{path}/retry")).json() == {"id": id_, "answer": "retried"}
    await served.settle()
    assert (await served.client.delete(path)).status_code == 204
    assert (await served.client.get(path)).status_code == 404


async def test_many_are_changed_by_their_ids(served: Served) -> None:
    """One wrong id must neither stop the others nor be ignored."""
    ids = [await submitted(served) for _ in range(3)]
    answer = (await served.client.post("/v1/jobs/cancel", json={"ids": [*ids, ids[0], "0" * 26]})).json()
    assert (answer["cancelled"], answer["refused"]) == (3, [{"id": "0" * 26, "reason": "there is no such job"}])
    assert (await served.client.post("/v1/jobs/retry", json={"ids": ids[:2]})).json()["retried"] == 2
    answer = (await served.client.post("/v1/jobs/discard", json={"ids": ids})).json()
    assert answer["discarded"] == 1
    assert [each["id"] for each in answer["refused"]] == ids[:2]


async def test_many_are_changed_by_a_filter_after_their_number_was_confirmed(served: Served) -> None:
    """A user who confirms three jobs must not change four."""
    for _ in range(3):
        await submitted(served, queue="a")
    await submitted(served, queue="b")
    body: dict[str, Any] = {"filter": {"queue": "a"}}
    assert (await served.client.post("/v1/jobs/cancel", json=body)).json() == {
        "cancelled": 0,
        "matching": 3,
        "more": False,
    }
    await submitted(served, queue="a")
    refused = await served.client.post("/v1/jobs/cancel", json={**body, "confirm": 3})
    assert (refused.status_code, refused.json()["code"], refused.json()["matching"]) == (409, "count_changed", 4)
    done = await served.client.post("/v1/jobs/cancel", json={**body, "confirm": 4})
    assert done.json()["cancelled"] == 4
    left = (await served.client.get("/v1/jobs", params={"state": "pending"})).json()["items"]
    assert [item["queue"] for item in left] == ["b"]


NO_CHANGE: list[Any] = [
    {}, {"ids": [], "filter": {}}, {"ids": []}, {"ids": ["x"] * 1_001},
    {"filter": {"states": ["done"]}}, {"filter": {"x": 1}},
]  # fmt: skip


async def test_a_change_that_makes_no_sense_is_refused(served: Served) -> None:
    """An empty or misspelled selection must not change all jobs."""
    for body in NO_CHANGE:
        assert (await served.client.post("/v1/jobs/cancel", json=body)).status_code == 422
