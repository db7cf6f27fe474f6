"""routes ─► [OpenAPI 3.1] ─► documentation, client generators, tests

FastAPI knows paths and parameters. This module adds bodies and responses, which are msgspec structs, required scopes,
and the errors that each route can return.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from leaseway.api.errors import MEDIA_TYPE, TITLES
from leaseway.api.routing import COMPONENTS, OPEN, RouteDescription, route_descriptions
from leaseway.api.schemas.values import ProblemDocument

REF = "#/components/schemas/"
SUFFIX = "Document"
"""The suffix of response structs, which tells them apart from domain classes. Component names do not have it."""
SECURITY = {
    "key": {
        "type": "http", "scheme": "bearer", "description": "An API key (lw_…), or a JWT if an issuer is configured.",
    },
    "session": {
        "type": "apiKey", "in": "cookie", "name": "leaseway_session",
        "description": "For browsers: POST /v1/session. Requests that change something also need the x-csrf-token "
        "header.",
    },
}  # fmt: skip
CURSOR = {"type": ["string", "null"], "description": "The cursor of the next page; null: this is the last page."}
ABOUT = (
    "Every response below /v1 is JSON; every error is an RFC 9457 problem with a stable `code`. Timestamps are ISO "
    "8601 in UTC, durations are in seconds. Lists are paginated with `limit`, `cursor`, and `next` in the response."
)
TAGS = {
    "budgets": "Budgets: limits on money or units per calendar window, balances and corrections.",
    "health": "Whether the service runs and reaches its store.",
    "imports": "Imports: specs, runs, shards, quarantined rows.",
    "jobs": "Jobs: submit, find, explain, cancel, retry.",
    "keys": "API keys.",
    "lanes": "Lanes: the jobs that share queue, tenant, limits and budget; pause and resume.",
    "limits": "Limits: rates and concurrency of providers.",
    "live": "Changes as they happen, over server-sent events or a WebSocket.",
    "metrics": "Metrics for Prometheus and for autoscalers.",
    "scaling": "How many workers a pool of queues should have, and why; for orchestrators.",
    "schedules": "Schedules: jobs that are submitted at regular times.",
    "session": "Sessions of browsers.",
    "tenants": "Tenants: weights and quotas.",
    "work": "The worker protocol: the store, the limiter and the ledger over HTTP. For workers of leaseway.",
    "workers": "Workers and what they do.",
}
UNSAFE = ("post", "put", "delete", "patch")
UNDESCRIBED = RouteDescription(None, None, False, None, (), (), ())


def add_openapi(api: FastAPI) -> None:
    """Make the application return the complete document. It is built on the first request for it."""

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = openapi_document(api)
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]


def openapi_document(api: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=api.title, version=api.version, routes=api.routes, description=ABOUT)
    descriptions = route_descriptions(api.routes)
    for path, method, operation in operations(document):
        route = f"{method.upper()} {path}"
        complete(operation, route, descriptions.get(route, UNDESCRIBED))
    document["info"]["contact"] = {"name": api.title}
    document["servers"] = [{"url": "/", "description": "The service that returned this document"}]
    document["tags"] = [{"name": name, "description": text} for name, text in sorted(TAGS.items())]
    document["components"] = {
        "schemas": dict(sorted(component_schemas(descriptions).items())),
        "responses": {f"Problem{status}": problem_response(status) for status in sorted(returned_problems(document))},
        "securitySchemes": SECURITY,
    }
    portable: dict[str, Any] = portable_schema(document)
    return portable


def returned_problems(document: dict[str, Any]) -> set[int]:
    """The statuses of all errors that some route can return."""
    statuses = {int(status) for _, _, operation in operations(document) for status in operation["responses"]}
    return statuses & set(TITLES)


def portable_schema(schema: Any) -> Any:
    """The same schema, with tuples in a form that client generators understand.

    msgspec closes a tuple with `items: false`, which generators and linters refuse. The tuple has a fixed length, so
    `items` may as well name the types that its members have.
    """
    match schema:
        case {"prefixItems": [*members], "items": False, **others}:
            kinds = [portable_schema(member) for member in members]
            distinct = [kind for place, kind in enumerate(kinds) if kind not in kinds[:place]]
            items = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
            return {**others, "prefixItems": kinds, "items": items}
        case dict():
            return {name: portable_schema(value) for name, value in schema.items()}
        case list() | tuple():
            return [portable_schema(each) for each in schema]
        case _:
            return schema


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def component_schemas(descriptions: Mapping[str, RouteDescription]) -> dict[str, Any]:
    structs = {struct for each in descriptions.values() for struct in (each.body, each.returns) if struct is not None}
    ordered = sorted({*structs, ProblemDocument}, key=lambda struct: struct.__name__)
    _, found = msgspec.json.schema_components(ordered, ref_template=REF + "{name}")
    return {component_name(name): renamed(schema) for name, schema in found.items()} | COMPONENTS


def component_name(struct_name: str) -> str:
    return struct_name.removesuffix(SUFFIX)


def renamed(schema: Any) -> Any:
    """The same schema, whose references and titles use the components' names."""
    match schema:
        case dict():
            is_name = {name: name in ("$ref", "title") and isinstance(value, str) for name, value in schema.items()}
            return {name: component_name(value) if is_name[name] else renamed(value)
                    for name, value in schema.items()}  # fmt: skip
        case list() | tuple():
            return [renamed(each) for each in schema]
        case _:
            return schema


def reference(struct: type) -> dict[str, str]:
    return {"$ref": REF + component_name(struct.__name__)}


# -- one route ------------------------------------------------------------------------------------------------------


def complete(operation: dict[str, Any], route: str, described: RouteDescription) -> None:
    text = operation.get("description", "").strip()
    operation["summary"] = text.partition("\n")[0].partition(". ")[0].rstrip(".") if text else operation["summary"]
    operation["operationId"] = operation_id(route)
    is_open = operation["x-scope"] == OPEN
    operation["security"] = [] if is_open else [{"key": []}, {"session": []}]
    if described.body is not None:
        content = {"application/json": {"schema": reference(described.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    operation.setdefault("parameters", []).extend(header_parameter(*each) for each in described.headers)
    if not operation["parameters"]:
        del operation["parameters"]
    add_success(operation["responses"], described)
    for status in possible_problems(operation, route, described, is_open):
        operation["responses"][str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    operation["responses"] = dict(sorted(operation["responses"].items()))


def operation_id(route: str) -> str:
    """For example put_limits_name: derived from method and path, which are stable."""
    method, _, path = route.partition(" ")
    inside = path.removeprefix("/v1") if path.startswith("/v1/") else f"/service{path}"
    words = [method.lower(), *(word.strip("{}") for word in inside.split("/") if word)]
    return "_".join(words).replace("-", "_").replace(".", "_")


def header_parameter(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": description}


def add_success(responses: dict[str, Any], described: RouteDescription) -> None:
    (first,) = [status for status in responses if status.startswith("2")]
    for status in (first, *map(str, described.also)):
        response = responses.setdefault(status, {"description": "Created" if status == "201" else "Success"})
        if described.returns is not None:
            response["content"] = {"application/json": {"schema": response_schema(described)}}
        elif described.media_type is not None:
            response["content"] = {described.media_type: {"schema": {"type": "string"}}}
        if response["description"] == "Successful Response":
            response["description"] = "Success"


def response_schema(described: RouteDescription) -> dict[str, Any]:
    assert described.returns is not None
    if not described.is_page:
        return reference(described.returns)
    items = {"type": "array", "items": reference(described.returns)}
    return {"type": "object", "required": ["items", "next"], "properties": {"items": items, "next": CURSOR}}


def possible_problems(operation: dict[str, Any], route: str, described: RouteDescription, is_open: bool) -> set[int]:
    """Errors that every route of this kind can return, and those that this route declares."""
    found = {421, 500, 503, *described.problems}
    if not is_open:
        found |= {401, 403, 429}
    if "{" in route:
        found |= {404, 422}
    if any(each["in"] == "query" for each in operation.get("parameters", ())):
        found |= {422}
    if "requestBody" in operation:
        found |= {400, 408, 413, 415, 422}
    if route.partition(" ")[0].lower() in UNSAFE:
        found |= {403}  # a browser that sends it from another site's page
    return found


def problem_response(status: int) -> dict[str, Any]:
    return {"description": TITLES.get(status, "Error"), "content": {MEDIA_TYPE: {"schema": reference(ProblemDocument)}}}
