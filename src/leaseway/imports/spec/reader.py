"""Read a spec: the source, its records, paging and partition, and the sink; and its JSON Schema, for editors."""

import ast
import hashlib
import inspect
import json
import tomllib
from collections.abc import Iterator
from typing import Any

import msgspec

from leaseway.domain.errors import UsageError
from leaseway.imports.domain.shard import canonical
from leaseway.imports.spec import model
from leaseway.imports.spec.checks import check_spec
from leaseway.imports.spec.model import PageNumberPaging, Resource, SinkSpec, SourceSpec, Spec
from leaseway.imports.spec.parser import apply_preset, parse_value

__all__ = ["BadSpec", "Resource", "SinkSpec", "SourceSpec", "Spec", "read_spec", "spec_hash"]

TEXT_LENGTH_MAX = 1_000_000


class BadSpec(UsageError):
    """An invalid spec, with all problems and their fields."""

    def __init__(self, path: str, problems: list[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{path}: {place}: {problem}" for place, problem in problems))
        self.problems = problems


def read_spec(text: str, path: str) -> Spec:
    """`path` is used in messages only."""
    if len(text) > TEXT_LENGTH_MAX:
        raise BadSpec(path, [("spec", f"must be at most {TEXT_LENGTH_MAX:,} characters (has {len(text):,})")])
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadSpec(path, [("TOML", str(error))]) from error
    problems: list[tuple[str, str]] = []
    spec = parse_value(Spec, apply_preset(data, problems), "", problems)
    if not problems:
        problems.extend(check_spec(spec))
    if problems:
        raise BadSpec(path, problems)
    assert isinstance(spec, Spec)
    return spec


# Fields that may change between start and resume, because they do not change which rows a run produces: pace,
# identification and guards. The URL of the sink may contain a password, and the run is stored there anyway.
UNHASHED = {
    "source": ("limits", "concurrency", "auth", "headers"),
    "resource": ("guards", "on_bad_row", "incremental", "deletes"),
    "sink": ("url",),
}


def spec_hash(spec: Spec) -> str:
    """Equal for specs that produce the same rows. Contains no secrets."""
    data: dict[str, Any] = msgspec.to_builtins(spec)
    del data["budget"]
    for section, fields in UNHASHED.items():
        for field in fields:
            data[section].pop(field, None)
    if not isinstance(spec.resource.page, PageNumberPaging):
        # A page number has another meaning with another page size; other cursors do not.
        data["resource"]["page"].pop("limit", None)
    data["resource"]["page"].pop("limit_min", None)
    return hashlib.sha256(canonical(data).encode()).hexdigest()[:16]


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
