"""routes ─► [OpenAPI 3.1] ─► people, client generators, tests

FastAPI knows paths and parameters. What it cannot see is added here: bodies and answers, which are msgspec's, who may
ask, and which problems may be the answer.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from leaseway.api.errors import MEDIA_TYPE, TITLES
from leaseway.api.openapi_routes import ANSWERS, HEADERS, Answer, Many, One, Plain
from leaseway.api.routing import BODIES, COMPONENTS, OPEN
from leaseway.api.schemas.jobs import Problem

REF = "#/components/schemas/"
SECURITY = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key (lw_…), or a JWT where an issuer is set."},
    "session": {
        "type": "apiKey", "in": "cookie", "name": "leaseway_session",
        "description": "For browsers: POST /v1/session. What changes something also needs the header x-csrf-token.",
    },
}  # fmt: skip
CURSOR = {"type": ["string", "null"], "description": "The cursor of the next page; null: this was the last one."}
ABOUT = (
    "Every answer of /v1 is JSON, every refusal a problem of RFC 9457 with a stable `code`. Instants are ISO 8601 in "
    "UTC, durations are seconds. Lists have pages: `limit`, `cursor`, and `next` in the answer."
)
UNSAFE = ("post", "put", "delete", "patch")


def describe(api: FastAPI) -> None:
    """From now on the app describes itself completely; made once, when it is first asked for."""

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = description_of(api)
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]


def description_of(api: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=api.title, version=api.version, routes=api.routes, description=ABOUT)
    for path, method, operation in operations_of(document):
        complete(operation, f"{method.upper()} {path}")
    document["components"] = {
        "schemas": dict(sorted(components().items())),
        "responses": {f"Problem{status}": problem(status) for status in sorted(TITLES)},
        "securitySchemes": SECURITY,
    }
    return document


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield path, method, operation


def components() -> dict[str, Any]:
    answered = {answer.shape for answer in ANSWERS.values() if isinstance(answer, One | Many)}
    shapes = sorted({*BODIES, *answered, Problem}, key=lambda shape: shape.__name__)
    _, found = msgspec.json.schema_components(shapes, ref_template=REF + "{name}")
    return found | COMPONENTS


# -- one route ------------------------------------------------------------------------------------------------------


def complete(operation: dict[str, Any], route: str) -> None:
    said = operation.get("description", "").strip()
    operation["summary"] = said.partition("\n")[0].partition(". ")[0].rstrip(".") if said else operation["summary"]
    operation["operationId"] = operation_id(route)
    is_open = operation["x-scope"] == OPEN
    operation["security"] = [] if is_open else [{"key": []}, {"session": []}]
    operation.setdefault("parameters", []).extend(header(*each) for each in HEADERS.get(route, ()))
    if not operation["parameters"]:
        del operation["parameters"]
    answer = ANSWERS.get(route)
    if answer is not None:
        succeed(operation["responses"], answer)
    for status in problems_of(operation, route, answer, is_open):
        operation["responses"][str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    operation["responses"] = dict(sorted(operation["responses"].items()))


def operation_id(route: str) -> str:
    """put_limits_name: of method and path, which are what nobody changes."""
    method, _, path = route.partition(" ")
    inside = path.removeprefix("/v1") if path.startswith("/v1/") else f"/service{path}"
    words = [method.lower(), *(word.strip("{}") for word in inside.split("/") if word)]
    return "_".join(words).replace("-", "_").replace(".", "_")


def header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": description}


def succeed(responses: dict[str, Any], answer: Answer) -> None:
    (first,) = [status for status in responses if status.startswith("2")]
    for status in (first, *map(str, answer.also)):
        told = responses.setdefault(status, {"description": "Created" if status == "201" else "Done"})
        if content := content_of(answer):
            told["content"] = content
        told["description"] = "Done" if told["description"] == "Successful Response" else told["description"]


def content_of(answer: Answer) -> dict[str, Any]:
    match answer:
        case One():
            return {"application/json": {"schema": {"$ref": REF + answer.shape.__name__}}}
        case Many():
            items = {"type": "array", "items": {"$ref": REF + answer.shape.__name__}}
            page = {"type": "object", "required": ["items", "next"], "properties": {"items": items, "next": CURSOR}}
            return {"application/json": {"schema": page}}
        case Plain():
            return {answer.media_type: {"schema": {"type": "string"}}}
        case _:
            return {}


def problems_of(operation: dict[str, Any], route: str, answer: Answer | None, is_open: bool) -> set[int]:
    """Those that any route of its kind may answer with, and its own."""
    found = {421, 500, 503, *(answer.codes if answer is not None else ())}
    if not is_open:
        found |= {401, 403, 429}
    if "{" in route:
        found |= {404, 422}
    if any(each["in"] == "query" for each in operation.get("parameters", ())):
        found |= {422}
    if "requestBody" in operation:
        found |= {400, 408, 413, 415, 422}
    if route.partition(" ")[0].lower() in UNSAFE:
        found |= {403}  # a page of somebody else, in a browser
    return found


def problem(status: int) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": {"$ref": REF + Problem.__name__}}}
    return {"description": TITLES.get(status, "Problem"), "content": content}
