"""The OpenAPI document as a Markdown page.

`python -m tests.api.reference` writes the page below the marker in docs/reference/http.md, and test_reference.py
compares the two.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leaseway import App
from leaseway.api.app import build_app
from leaseway.api.settings import ServiceSettings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"
MARK = "<!-- Generated from the OpenAPI description: python -m tests.api.reference -->\n"
REF = "#/components/schemas/"
COMMON = {"401", "403", "421", "422", "429", "500", "503", "400", "408", "413", "415"}
"""Errors that the page describes once, above the routes."""

Json = dict[str, Any]


def openapi_document() -> Json:
    return build_app(App("memory://"), ServiceSettings(auth=False)).openapi()


def page_of(document: Json) -> str:
    return "\n".join([*routes_of(document), *shapes_of(document)]) + "\n"


# -- routes ---------------------------------------------------------------------------------------------------------


def routes_of(document: Json) -> Iterator[str]:
    tags: dict[str, list[tuple[str, Json]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tags.setdefault(operation["tags"][0], []).append((f"{method.upper()} {path}", operation))
    for tag, routes in sorted(tags.items()):
        yield from ["", f"## {tag.capitalize()}"]
        for route, operation in routes:
            yield from route_of(route, operation)


def route_of(route: str, operation: Json) -> Iterator[str]:
    scope = operation["x-scope"]
    yield from ["", f"### `{route}`", "", text_of(operation.get("description") or f"{operation['summary']}.")]
    facts = ["Needs no authentication." if scope == "open" else f"Needs the scope `{scope}`."]
    if "requestBody" in operation:
        facts.append(f"Body: {shape_of(operation['requestBody']['content']['application/json']['schema'])}.")
    good = successes(operation)
    facts.append(f"Returns {' or '.join(status for status, _ in good)}{content_of(good[0][1])}.")
    own = [status for status in operation["responses"] if status[0] in "45" and status not in COMMON]
    facts += [f"Other errors: {', '.join(own)}."] if own else []
    yield from ["", " ".join(facts)]
    parameters = [each for each in operation.get("parameters", ()) if each["in"] != "path"]
    if parameters:
        yield from ["", "| parameter | in | type | |", "|---|---|---|---|", *map(parameter_of, parameters)]


def successes(operation: Json) -> list[tuple[str, Json]]:
    return [(status, response) for status, response in operation["responses"].items() if status[0] == "2"]


def content_of(response: Json) -> str:
    for media_type, content in response.get("content", {}).items():
        said = shape_of(content.get("schema", {}))
        return f" with {said}" if media_type == "application/json" else f" with `{media_type}`"
    return ""


def parameter_of(parameter: Json) -> str:
    schema = parameter["schema"]
    default = f"default {json.dumps(schema['default'])}" if schema.get("default") is not None else ""
    more = " ".join(each for each in (parameter.get("description", ""), default) if each)
    return f"| `{parameter['name']}` | {parameter['in']} | {shape_of(schema)} | {text_of(more)} |"


# -- schemas --------------------------------------------------------------------------------------------------------


def shapes_of(document: Json) -> Iterator[str]:
    yield from ["", "## Schemas"]
    for name, schema in document["components"]["schemas"].items():
        yield from ["", f"### {name}"]
        if schema.get("description"):
            yield from ["", text_of(schema["description"])]
        if "enum" in schema:
            yield from ["", "One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + "."]
        elif "properties" in schema:
            required = schema.get("required", ())
            rows = [field_of(field, of, field in required) for field, of in schema["properties"].items()]
            yield from ["", "| field | type | |", "|---|---|---|", *rows]


def field_of(name: str, schema: Json, is_required: bool) -> str:
    default = "" if "default" not in schema else f"default {json.dumps(schema['default'])}"
    return f"| `{name}` | {shape_of(schema)} | {'' if is_required else default or 'optional'} |"


def shape_of(schema: Json | bool) -> str:
    if isinstance(schema, bool):
        return "any JSON"
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(REF)
        return f"[{name}](#{name.lower().replace('.', '')})"  # the anchor that GitHub gives the heading
    if "anyOf" in schema:
        return " or ".join(shape_of(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list of {shape_of(schema.get('items', {}))}"
        case "object" if "items" in schema.get("properties", {}):
            return f"a page: `items`, {shape_of(schema['properties']['items'])}, and `next`"
        case list() as kinds:
            return " or ".join(kinds)
        case "string" if "format" in schema:
            return str(schema["format"])
        case str() as kind:
            return kind + bounds_of(schema)
        case _:
            return "any JSON"


def bounds_of(schema: Json) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    return f" {low:g} … {high:g}" if low is not None and high is not None else ""


def text_of(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    begin, mark, _ = PAGE.read_text("utf-8").partition(MARK)
    PAGE.write_text(begin + (mark or MARK) + page_of(openapi_document()), "utf-8")


if __name__ == "__main__":
    main()
