"""The OpenAPI schemas of the worker protocol, derived from the table of verbs.

They have a prefix, because domain values share their names with documents of other routes.
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
from leaseway.stores.http.responses import Answer

REF = "#/components/schemas/Work."
QUALIFIED = "leaseway.domain."
"""The prefix that msgspec adds if two values have the same name."""


def wrapped_type(kind: Any) -> Any:
    """The type of a value that is wrapped in an object for the wire."""
    return get_args(kind)[0] if get_origin(kind) is Answer else kind


def build_schemas() -> tuple[dict[Any, Any], dict[str, Any]]:
    """Schemas by type, and the components that they refer to."""
    kinds = list(dict.fromkeys([bool, *(wrapped_type(kind) for verb in VERBS for kind in (verb.body, verb.answer))]))
    made = msgspec.json.encode(msgspec.json.schema_components(kinds, ref_template=REF + "{name}"))
    found, components = msgspec.json.decode(made.replace(QUALIFIED.encode(), b""))
    return dict(zip(kinds, found, strict=True)), {f"Work.{name}": schema for name, schema in components.items()}


SCHEMAS_BY_TYPE, FOUND = build_schemas()
COMPONENTS.update(FOUND)
PORTS: dict[str, Any] = {
    "store.jobs": JobStore, "store.operations": JobOperations, "store.reads": JobReads,
    "store.schedules": ScheduleStore, "store.tenants": TenantStore,
    "limiter": Limiter, "limiter.definitions": LimitDefinitions,
    "ledger": Ledger, "ledger.definitions": BudgetDefinitions, "ledger.reads": BudgetReads,
}  # fmt: skip


def type_schema(kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMAS_BY_TYPE[wrapped_type(kind)]
    if wrapped_type(kind) is kind:
        return found
    return {"type": "object", "properties": {"answer": found}, "required": ["answer"]}


def verb_options(verb: Verb[Any, Any]) -> dict[str, Any]:
    """The options of a route. Its description is the docstring of the port's method."""
    body = {"application/json": {"schema": type_schema(verb.body)}}
    promise = inspect.getdoc(getattr(PORTS[verb.port], verb.method)) or ""
    return {
        **response_options(verb.answer),
        "description": promise,
        "openapi_extra": {"requestBody": {"required": True, "content": body}},
    }


def response_options(kind: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": type_schema(kind)}}
    return {"responses": {200: {"description": "Success", "content": content}}}
