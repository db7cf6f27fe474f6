"""The JSON Schema of a spec, for editors.

python -m leaseway.imports.spec.json_schema > docs/reference/import-spec.schema.json
"""

import ast
import inspect
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from leaseway.imports.spec import model

TITLE = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "leaseway import spec"}


HAS_CLIENT = {"properties": {"source": {"properties": {"kind": {"const": "ocm"}}, "required": ["kind"]}}}
OTHERWISE = {"required": ["resource"], "properties": {"resource": {"required": ["key"]}}}


def schema() -> dict[str, Any]:
    made = {**TITLE, **msgspec.json.schema(model.Spec)}
    leave_to_clients(made["$defs"])
    for part, field, words in field_descriptions():
        properties = made["$defs"].get(part, {}).get("properties", {})
        if field in properties:
            properties[field] = {**properties[field], "description": words}
    return made


def leave_to_clients(parts: dict[str, Any]) -> None:
    """Fields that a source preset provides are not required: the key and the paging."""
    parts["Resource"]["required"].remove("key")
    parts["Spec"]["required"].remove("resource")
    parts["Spec"] |= {"if": HAS_CLIENT, "else": OTHERWISE}
    sizes = {name: parts["KeysetPaging"]["properties"][name] for name in ("limit", "limit_min")}
    parts["PageOfClient"] = {"type": "object", "properties": sizes, "additionalProperties": False}
    parts["Resource"]["properties"]["page"]["anyOf"].append({"$ref": "#/$defs/PageOfClient"})


def field_descriptions() -> Iterator[tuple[str, str, str]]:
    """The docstrings of the fields of each struct and its bases."""
    tree = ast.parse(inspect.getsource(model))
    own = {node.name: dict(texts_in(node)) for node in tree.body if isinstance(node, ast.ClassDef)}
    for name in own:
        for base in reversed(getattr(model, name).__mro__):
            for field, words in own.get(base.__name__, {}).items():
                yield name, field, words


def texts_in(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            yield field.target.id, inspect.cleandoc(str(ast.literal_eval(below.value)))


def schema_text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
