"""Read a spec: the source, its records, paging and partition, and the sink; and its JSON Schema, for editors."""

import ast
import hashlib
import inspect
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from leaseway.domain.errors import UsageError
from leaseway.imports.domain.partition import canonical
from leaseway.imports.spec import model
from leaseway.imports.spec.checks import check_spec
from leaseway.imports.spec.model import PageNumberPaging, Resource, SinkSpec, SourceSpec, Spec
from leaseway.imports.spec.parser import apply_preset, parse_value, suggestion

__all__ = [
    "BadSpec",
    "Resource",
    "SinkSpec",
    "SourceSpec",
    "Spec",
    "list_resources",
    "read_spec",
    "read_spec_file",
    "spec_hash",
]

TEXT_LENGTH_MAX = 1_000_000
MARK = "#"
RESOURCES = "resources"


class BadSpec(UsageError):
    """An invalid spec, with all problems and their fields."""

    def __init__(self, path: str, problems: list[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{path}: {place}: {problem}" for place, problem in problems))
        self.problems = problems


def read_spec_file(path: Path | str) -> Spec:
    """The spec of shop.toml, or of one of its resources: shop.toml#orders."""
    file, resource = split_resource(path)
    return read_spec(file.read_text("utf-8"), str(file), resource)


def read_spec(text: str, path: str, resource: str | None = None) -> Spec:
    """`path` is used in messages only; `resource` chooses one of several."""
    data = read_toml(text, path)
    if problems := list(check_choice(data, path, resource)):
        raise BadSpec(path, problems)
    chosen, where = choose_resource(data, resource)
    spec = parse_value(Spec, apply_preset(chosen, problems), "", problems)
    if not problems:
        problems.extend(check_spec(spec))
    if problems:
        raise BadSpec(path, [(place_in_file(place, where), problem) for place, problem in problems])
    assert isinstance(spec, Spec)
    return spec


def read_toml(text: str, path: str) -> dict[str, Any]:
    if len(text) > TEXT_LENGTH_MAX:
        raise BadSpec(path, [("spec", f"must be at most {TEXT_LENGTH_MAX:,} characters (has {len(text):,})")])
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadSpec(path, [("TOML", str(error))]) from error


def list_resources(path: Path | str) -> list[str]:
    """The names of the specs in a file: shop.toml, or shop.toml#orders and shop.toml#customers."""
    file, chosen = split_resource(path)
    names = [] if chosen is not None else resource_names(read_toml(file.read_text("utf-8"), str(file)))
    return [f"{path}{MARK}{name}" for name in names] or [str(path)]


# -- several resources in one file ------------------------------------------------------------------------------------
#
# [resources.NAME] ─► the spec of one of them, shop.toml#orders. Each resource has its own runs, shards and table;
# together they have one source and one limit. The tables of a file are rearranged before they are parsed, so everything
# else knows specs of one resource only.


def split_resource(path: Path | str) -> tuple[Path, str | None]:
    """The file, and the resource in it: shop.toml#orders. A file whose own name has the mark is found, too."""
    if Path(path).is_file() or MARK not in str(path):
        return Path(path), None
    file, _, resource = str(path).rpartition(MARK)
    return Path(file), resource


def resource_names(data: dict[str, Any]) -> list[str]:
    """In the order of the file. Empty: the file has one resource, without a name."""
    found = data.get(RESOURCES)
    return list(found) if isinstance(found, dict) else []


def check_choice(data: dict[str, Any], path: str, chosen: str | None) -> Iterator[tuple[str, str]]:
    names = resource_names(data)
    if RESOURCES not in data:
        if chosen is not None:
            yield RESOURCES, f"is missing, so there is no {chosen!r}; write {path} without {MARK}{chosen}"
        return
    if "resource" in data:
        yield "resource", f"is for a file with one resource; move it to [{RESOURCES}.NAME]"
    elif not names or not all(isinstance(data[RESOURCES][name], dict) for name in names):
        yield RESOURCES, "must be tables with names, such as [resources.orders]"
    elif chosen is None and len(names) > 1:
        yield RESOURCES, f"has {len(names)}; name one: {', '.join(f'{path}{MARK}{name}' for name in names)}"
    elif chosen is not None and chosen not in names:
        yield RESOURCES, f"has no {chosen!r}{suggestion(chosen, names)}; it has {', '.join(names)}"


def choose_resource(data: dict[str, Any], chosen: str | None) -> tuple[dict[str, Any], str]:
    """The spec of one resource, and the place of that resource in the file. The choice has been checked."""
    if RESOURCES not in data:
        return data, "resource"
    name = chosen or resource_names(data)[0]
    source, sink = data.get("source"), data.get("sink")
    resource = dict(data[RESOURCES][name])
    table = resource.pop("table", name.replace("-", "_"))
    rest = {key: value for key, value in data.items() if key != RESOURCES}
    return {
        **rest,
        "resource": resource,
        **({"source": own_source(source, name)} if isinstance(source, dict) else {}),
        **({"sink": {"table": table, **sink}} if isinstance(sink, dict) else {}),
    }, f"{RESOURCES}.{name}"


def own_source(source: dict[str, Any], name: str) -> dict[str, Any]:
    """Runs and keys of rows are separate; the limit is the source's."""
    shared = source.get("name")
    if not isinstance(shared, str):
        return source
    limit = {"limit_name": shared} if "limits" in source or "concurrency" in source else {}
    return {**limit, **source, "name": f"{shared}-{name}"}


def place_in_file(place: str, where: str) -> str:
    """The field as it is written in the file."""
    return where + place.removeprefix("resource") if place.split(".")[0] == "resource" else place


# -- hash and schema --------------------------------------------------------------------------------------------------

# Fields that may change between start and resume, because they do not change which rows a run produces: pace,
# identification and guards. The URL of the sink may contain a password, and the run is stored there anyway.
UNHASHED = {
    "source": ("limits", "limit_name", "trusted", "concurrency", "auth", "headers"),
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


SEVERAL = {"required": ["resources"]}
HAS_CLIENT = {"properties": {"source": {"properties": {"kind": {"const": "ocm"}}, "required": ["kind"]}}}
ONE = {"required": ["resource"], "properties": {"resource": {"required": ["key"]}}}
OTHERWISE = {"anyOf": [ONE, SEVERAL]}


def schema() -> dict[str, Any]:
    made = {**TITLE, **msgspec.json.schema(model.Spec)}
    for part in made["$defs"].values():
        if "description" in part:  # Python 3.13 and later remove the indentation of docstrings
            part["description"] = inspect.cleandoc(part["description"])
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
    add_named_resources(parts)


def add_named_resources(parts: dict[str, Any]) -> None:
    """[resources.NAME] is a resource and its table."""
    table, name = parts["SinkSpec"]["properties"]["table"], parts["SourceSpec"]["properties"]["name"]["pattern"]
    named = parts["Resource"]
    parts["NamedResource"] = {**named, "properties": {**named["properties"], "table": table}}
    several = {"type": "object", "minProperties": 1, "propertyNames": {"pattern": name}}
    words = "Several resources of one source, by name."
    several |= {"description": words, "additionalProperties": {"$ref": "#/$defs/NamedResource"}}
    parts["Spec"]["properties"]["resources"] = several
    parts["SinkSpec"]["required"].remove("table")


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
