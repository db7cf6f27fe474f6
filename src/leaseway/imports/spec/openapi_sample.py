"""An OpenAPI document ─► what a reply of one of its paths looks like, for `guess_spec`."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin

from leaseway.imports.spec.guess_spec import ApiReply, find_records

DEPTH_MAX = 8
TEXTS = {"date-time": "2026-01-01T00:00:00Z", "date": "2026-01-01", "uri": "https://api.example/next"}

Document = Mapping[str, Any]


def sample_reply(document: Document, path: str | None, where: str) -> ApiReply:
    """Of this path, or of the only one that returns a list. Raises ValueError with the paths to choose from."""
    lists = dict(list_paths(document))
    if path is None and len(lists) == 1:
        (path,) = lists
    if path is None or path not in lists:
        known = ", ".join(lists) or "none"
        raise ValueError(f"choose a path that returns a list with --path; there are: {known}")
    operation, body = lists[path]
    servers = document.get("servers") or [{"url": "/"}]
    url = urljoin(where, str(servers[0].get("url", "/")))
    names = [str(each.get("name")) for each in operation if each.get("in") == "query"]
    return ApiReply(url.rstrip("/") + path, body, params=names)


def list_paths(document: Document) -> Iterator[tuple[str, tuple[list[Document], Any]]]:
    """Paths without parameters of their own whose GET returns a list of objects: parameters and a sample."""
    for path, item in (document.get("paths") or {}).items():
        operation = resolve(document, item).get("get")
        if "{" in path or not isinstance(operation, dict):
            continue
        body = sample_value(document, response_schema(document, operation), 0)
        try:
            find_records(body)
        except ValueError:
            continue
        given = [*item.get("parameters", []), *operation.get("parameters", [])]
        yield path, ([resolve(document, each) for each in given], body)


def response_schema(document: Document, operation: Document) -> Any:
    answers = operation.get("responses") or {}
    answer = resolve(document, answers.get("200") or answers.get("default") or {})
    content = answer.get("content") or {}
    found = next((each for kind, each in content.items() if "json" in kind), answer)  # version 2 has no content
    return found.get("schema", {})


def resolve(document: Document, value: Any) -> Any:
    for _ in range(DEPTH_MAX):
        if not isinstance(value, dict) or "$ref" not in value:
            break
        found: Any = document
        for name in str(value["$ref"]).removeprefix("#/").split("/"):
            found = found.get(name.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, dict) else {}
        value = found
    return value if isinstance(value, dict) else {}


def sample_value(document: Document, schema: Any, depth: int) -> Any:
    schema = resolve(document, schema)
    if depth > DEPTH_MAX:
        return None
    for name in ("allOf", "anyOf", "oneOf"):
        parts = [sample_value(document, part, depth + 1) for part in schema.get(name, [])]
        if name == "allOf" and parts and all(isinstance(part, dict) for part in parts):
            return {key: value for part in parts for key, value in part.items()}
        if chosen := [part for part in parts if part is not None]:
            return chosen[0]
    return sample_of_type(document, schema, depth)


def sample_of_type(document: Document, schema: Document, depth: int) -> Any:
    kinds = schema.get("type", "object" if "properties" in schema else "null")
    kind = next((each for each in kinds if each != "null"), "null") if isinstance(kinds, list) else kinds
    match kind:
        case "object":
            properties = (schema.get("properties") or {}).items()
            return {name: sample_value(document, each, depth + 1) for name, each in properties}
        case "array":
            item = sample_value(document, schema.get("items", {}), depth + 1)
            return [] if item is None else [item]
        case "integer":
            return 1
        case "number":
            return 1.5
        case "boolean":
            return True
        case "string":
            return TEXTS.get(str(schema.get("format")), "text")
    return None
