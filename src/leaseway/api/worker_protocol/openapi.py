"""What the description of the API says about the routes of workers: made from the table of verbs.

Values of the domain share their names with others that the API shows, so they stand there under names of their own.
"""

import inspect
from typing import Any, get_args, get_origin

import msgspec

from leaseway.api.routing import COMPONENTS
from leaseway.ports.job_store import JobOperations, JobStore
from leaseway.ports.ledger import BudgetDefinitions, BudgetReads, Ledger
from leaseway.ports.limiter import LimitDefinitions, Limiter
from leaseway.ports.reads import JobReads
from leaseway.ports.schedule_store import ScheduleStore
from leaseway.ports.tenant_store import TenantStore
from leaseway.stores.http.protocol import VERBS, Verb
from leaseway.stores.http.responses import Said

REF = "#/components/schemas/Work."
LONG = "leaseway.domain."
"""So begins the name of a value whose short name another one has as well."""


def shown(kind: Any) -> Any:
    """What stands in an answer that is no object of its own."""
    return get_args(kind)[0] if get_origin(kind) is Said else kind


def schemas() -> tuple[dict[Any, Any], dict[str, Any]]:
    """By kind, and the components that they refer to."""
    kinds = list(dict.fromkeys([bool, *(shown(kind) for verb in VERBS for kind in (verb.body, verb.answer))]))
    made = msgspec.json.encode(msgspec.json.schema_components(kinds, ref_template=REF + "{name}"))
    found, components = msgspec.json.decode(made.replace(LONG.encode(), b""))
    return dict(zip(kinds, found, strict=True)), {f"Work.{name}": schema for name, schema in components.items()}


SCHEMA_OF, FOUND = schemas()
COMPONENTS.update(FOUND)
PORTS: dict[str, Any] = {
    "store.jobs": JobStore, "store.operations": JobOperations, "store.reads": JobReads,
    "store.schedules": ScheduleStore, "store.tenants": TenantStore,
    "limiter": Limiter, "limiter.definitions": LimitDefinitions,
    "ledger": Ledger, "ledger.definitions": BudgetDefinitions, "ledger.reads": BudgetReads,
}  # fmt: skip


def schema_of(kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMA_OF[shown(kind)]
    if shown(kind) is kind:
        return found
    return {"type": "object", "properties": {"answer": found}, "required": ["answer"]}


def described(verb: Verb[Any, Any]) -> dict[str, Any]:
    """Options of a route. What it promises is what the port promises."""
    body = {"application/json": {"schema": schema_of(verb.body)}}
    promise = inspect.getdoc(getattr(PORTS[verb.port], verb.method)) or ""
    return {
        **answering(verb.answer),
        "description": promise,
        "openapi_extra": {"requestBody": {"required": True, "content": body}},
    }


def answering(kind: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": schema_of(kind)}}
    return {"responses": {200: {"description": "Done", "content": content}}}
