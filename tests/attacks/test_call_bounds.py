"""Every list and every text that a worker's call contains has a bound of its own, so that one call costs a bounded time
and room."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from tests.api.keys import key_for
from tests.api.running_service import Served
from tests.attacks.extreme_values import leaf_values, sample_body, with_value

from leaseway import Budget, Limit
from leaseway.api.worker_protocol.validation import check_body
from leaseway.domain.errors import BadValue
from leaseway.domain.identity import Role, Scope
from leaseway.domain.ids import SECOND_US
from leaseway.domain.inspection import PAGE_MAX, JobFilter
from leaseway.stores.http.protocol import LIST_BOUNDS, VERBS, Verb
from leaseway.system import SystemIds

LISTS = (inspect.ListType, inspect.VarTupleType, inspect.DictType)
SAMPLES: dict[type, Any] = {
    inspect.StrType: "x", inspect.IntType: 1, inspect.FloatType: 1.0, inspect.BoolType: True, inspect.DictType: {},
}  # fmt: skip
GUIDE = Path("docs/guides/workers-over-http.md")


def alternatives(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def sample(kind: inspect.Type) -> Any:
    """The smallest value of a type."""
    kind = alternatives(kind)[0]
    if isinstance(kind, inspect.StructType):
        return {field.encode_name: sample(field.type) for field in kind.fields if field.required}
    if isinstance(kind, inspect.TupleType):
        return [sample(each) for each in kind.item_types]
    if isinstance(kind, inspect.EnumType):
        return next(iter(kind.cls)).value
    if isinstance(kind, LISTS):
        return {} if isinstance(kind, inspect.DictType) else []
    return SAMPLES[type(kind)]


def items(kind: inspect.Type, count: int) -> Any:
    if isinstance(kind, inspect.DictType):
        return {str(number): sample(kind.value_type) for number in range(count)}
    assert isinstance(kind, inspect.ListType | inspect.VarTupleType)
    return [sample(kind.item_type)] * count


def list_fields(kind: inspect.Type) -> Iterator[tuple[type, str, Any]]:
    """Struct, field, and a function of a number that makes the value around it with a list of so many items."""
    for each in alternatives(kind):
        if isinstance(each, inspect.StructType):
            for field in each.fields:
                for part in alternatives(field.type):
                    if isinstance(part, LISTS):
                        yield each.cls, field.name, placed(each, field.name, lambda n, part=part: items(part, n))
                    for owner, name, made in list_fields(part):
                        yield owner, name, placed(each, field.name, made)
        elif isinstance(each, inspect.ListType | inspect.VarTupleType):
            for owner, name, made in list_fields(each.item_type):
                yield owner, name, lambda n, made=made: [made(n)]


def placed(kind: inspect.StructType, field: str, made: Any) -> Any:
    return lambda count: {**sample(kind), field: made(count)}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.path)
def test_every_list_of_a_call_has_a_bound(verb: Verb[Any, Any]) -> None:
    """A list without one is the next call that holds the write lock for a minute."""
    for owner, field, made in list_fields(inspect.type_info(verb.body)):
        assert field in LIST_BOUNDS.get(owner, {}), f"{verb.path}: {owner.__name__}.{field} has no bound"
        most = LIST_BOUNDS[owner][field]
        with pytest.raises(BadValue, match=rf"must be at most {most:,} \(are {most + 1:,}\)"):
            check_body(msgspec.convert(made(most + 1), verb.body))


HOSTILE_TEXTS = {"a command for a terminal": "\x1b]0;owned\x07", "a long text": "x" * 300_000}
VALID: dict[str, Any] = {
    "payload": "{}", "result": "1", "progress": "1", "cursor": "1", "lease_us": 60 * SECOND_US, "needs": "",
    "trace": f"00-{'1' * 32}-{'1' * 16}-01", "cron": "* * * * *", "tz": "UTC", "times": {"run": {1: 1}},
    "unit": "requests", "degraded_share": 0,
}  # fmt: skip
"""Values that a sample does not guess, by the name of their field."""
NOT_STORED = (
    *("wants.tenant", "gate.needs", "closed.needs", "after", "before"),
    *(f"which.{name}" for name in JobFilter.__struct_fields__),
)
FREE_TEXTS = {
    *("settlements.failure.code", "settlements.failure.message", "settlements.failure.traceback"),  # cleaned first
    *("jobs.needs", "children.needs"),  # checked by `accept_jobs` for a tenant, and decoded before they are shown
    *("jobs.fingerprint", "children.fingerprint"),  # compared, never shown
    "tenant",  # of a heartbeat: that of the credential is stored
}


def valid_body(kind: type[Any]) -> Any:
    def corrected(value: Any) -> Any:
        if isinstance(value, list):
            return [corrected(each) for each in value]
        if isinstance(value, dict):
            return {name: VALID[name] if name in VALID else corrected(each) for name, each in value.items()}
        return value

    return corrected(sample_body(kind))


@pytest.mark.parametrize("name", HOSTILE_TEXTS)
@pytest.mark.parametrize(
    "verb", [verb for verb in VERBS if verb.scope is not Scope.OPERATE], ids=lambda each: each.path
)
def test_every_text_of_a_call_has_a_bound(verb: Verb[Any, Any], name: str) -> None:
    """Operators see these texts in a terminal, and the service remembers names for minutes: 20,000 of a megabyte each
    are 20 GB. A new field without a check would be the next hole."""
    body, accepted = valid_body(verb.body), set[str]()
    check_body(msgspec.convert(body, verb.body))
    for place, value in leaf_values(body):
        field = ".".join(part for part in place if isinstance(part, str))
        if isinstance(value, str) and not field.endswith(NOT_STORED):
            with contextlib.suppress(BadValue, msgspec.ValidationError):
                check_body(msgspec.convert(with_value(body, place, HOSTILE_TEXTS[name]), verb.body))
                accepted.add(field.removeprefix("settlements.") if "children" in field else field)
    assert accepted - FREE_TEXTS == set()


async def test_names_that_are_too_long_are_not_remembered(served_with_keys: Served) -> None:
    """The service counts the names that a tenant uses. It must not keep those that every store refuses."""
    world = served_with_keys.service.world
    await world.limiter.definitions.declare([Limit("mail:{tenant}:{account}", "100/second", concurrency=9).definition])
    await world.ledger.definitions.declare([Budget("spend:{tenant}:{account}", usd=1, every="day").definition])
    long = "x" * 300_000
    ask = {"name": "mail:acme:a", "limit": "mail:{tenant}:{account}"}
    line = [{"name": f"spend:acme:{long}", "budget": "spend:{tenant}:{account}"}, 1]
    key = await key_for(served_with_keys, "acme", Role.WORKER)
    async with served_with_keys.with_key(key.text) as worker:
        for path, body in (
            ("limits/acquire", {"asks": [{**ask, "name": f"mail:acme:{long}"}], "most": 1}),
            ("limits/levels", {"asks": [{**ask, "name": f"mail:acme:{long}"}]}),
            ("limits/renew-calls", {"asks": [ask], "holder": long, "count": 1, "in_flight_us": SECOND_US}),
            ("limits/end-calls", {"asks": [ask], "holder": long, "count": 1}),
            ("limits/observe", {"notice": {**ask, "name": f"mail:acme:{long}", "generation": 0}}),
            ("budgets/hold", {"id": "a", "lines": [line], "ttl_us": SECOND_US}),
            ("budgets/hold", {"id": long, "lines": [], "ttl_us": SECOND_US}),
            ("budgets/post", {"holds": [{"id": "a", "lines": [line], "ttl_us": SECOND_US}]}),
            ("budgets/wait-time", {"charges": line[:1]}),
        ):
            answer = await worker.post(f"/v1/work/{path}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), (path, answer.text[:300])
            assert len(answer.content) < 2_000
    metering = served_with_keys.service.metering
    remembered = [
        name for names in (metering._holders, metering._names) for each in names._used_at.values() for name in each
    ]
    assert max(map(len, remembered), default=0) < 1_000


async def test_a_call_with_too_many_items_is_refused_at_the_door(served: Served) -> None:
    """The check must stand before the store, not only in a function."""
    ids = [SystemIds().job() for _ in range(PAGE_MAX + 1)]
    for path, body in (
        ("jobs/list", {"which": {"ids": ids}}),
        ("jobs/retry", {"limit": 1, "which": {"ids": ids}}),
        ("jobs/discard", {"limit": PAGE_MAX + 1}),
        ("jobs/retry", {"limit": PAGE_MAX + 1}),
        ("wait-time", {"queues": [f"q{number}" for number in range(1_001)]}),
    ):
        answer = await served.client.post(f"/v1/work/{path}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), (path, answer.text)


async def test_the_children_of_one_exchange_are_bounded_together(served: Served) -> None:
    """A thousand settlements with ten thousand children each would be one transaction."""
    child = {"id": SystemIds().job(), "kind": "add", "payload": "{}"}
    settled = {"id": SystemIds().job(), "token": "t", "state": "done", "children": [child] * 5_001}
    answer = await served.client.post("/v1/work/exchange", json={"worker": "w", "settlements": [settled] * 2})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), answer.text
    assert "children" in answer.json()["detail"]


def test_the_guide_states_the_bounds() -> None:
    """The author of a worker in another language cannot guess them."""
    text = GUIDE.read_text("utf-8")
    for owner, fields in LIST_BOUNDS.items():
        for field, most in fields.items():
            rows = [line for line in text.splitlines() if line.startswith("|") and f"`{field}`" in line]
            assert any(f"{most:,}" in row for row in rows), f"{owner.__name__}.{field}: {most:,}"
