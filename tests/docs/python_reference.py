"""The signatures of every public name as a page: `python -m tests.docs.python_reference` writes them below the mark in
docs/reference/python.md, and test_python_reference.py compares the two.

Signatures are read from the source, not from the objects, so that they look the same in every version of Python.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import EnumType
from importlib import import_module
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
MARK = "<!-- Generated from the source: python -m tests.docs.python_reference -->\n"
WIDTH = 112

MODULES: dict[str, list[str] | None] = {
    "leaseway": None,
    "leaseway.capacity": None,
    "leaseway.providers": None,
    "leaseway.testing": None,
    "leaseway.testing.provider": ["provider", "Provider"],
    "leaseway.testing.models": ["model_provider", "ModelProvider"],
    "leaseway.testing.fake_open_charge_map": None,
    "leaseway.testing.postgres": ["postgres_server", "PostgresServer"],
    "leaseway.testing.valkey": ["valkey_server", "ValkeyServer"],
    "leaseway.testing.mongodb": ["mongodb_server", "MongoServer", "mongodb_replica_set", "MongoReplicaSet"],
    "leaseway.simulation": None,
    "leaseway.django": ["LeasewayBackend"],
    "leaseway.telemetry.log": ["JsonLines"],
    "leaseway.imports.sinks.port": ["Sink"],
}
"""The modules that users import from, with their public names; None: those in `__all__`."""

GIVEN = {
    "Context",
    "FakeApi",
    "JobHandle",
    "Importer",
    "LeasewayBackend",
    "MongoReplicaSet",
    "MongoServer",
    "ModelProvider",
    "PostgresServer",
    "Preset",
    "Provider",
    "RecordedCall",
    "SyncContext",
    "Submitted",
    "ValkeyServer",
    "VirtualTime",
}
"""Classes whose objects leaseway makes."""
OF_THE_WORKER = {("HandlerContext", "finish_calls"), ("HandlerContext", "prepare_calls"), ("StoreSession", "using")}
"""Methods that only leaseway calls."""
SPACED_DEFAULT = re.compile(r"(: [^=,]+(?:\[[^\]]*\][^=,]*)?)=")
"""A default behind an annotation, which is written with spaces around the sign."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_names(module: str) -> list[str]:
    names = MODULES[module]
    return list(import_module(module).__all__) if names is None else names


def render_page() -> str:
    parts = []
    for module in MODULES:
        parts.append(f"\n### `{module}`\n")
        for name in public_names(module):
            lines = "\n".join(describe(getattr(import_module(module), name), name))
            parts.append(f"\n#### `{name}`\n\n```text\n{lines}\n```\n")
    return "".join(parts)


def describe(value: Any, name: str) -> Iterator[str]:
    if not callable(value):
        yield f"{name}: {type(value).__name__}"
        return
    if not inspect.isclass(value):
        node = parse(value)
        assert isinstance(node, Function)
        yield from entry(f"{prefix(node)}{name}{signature(node)}", summary(node), "")
        return
    yield from entry(constructor(value, name), paragraph(inspect.cleandoc(value.__doc__ or "")), "")
    yield from members(value)


# -- classes ----------------------------------------------------------------------------------------------------------


def constructor(kind: type, name: str) -> str:
    if isinstance(kind, EnumType):
        return f"{name}: one of {', '.join(kind.__members__)}"
    if issubclass(kind, BaseException):
        bases = ", ".join(base.__name__ for base in kind.__bases__)
        return f"{name}({bases})"
    for owner in own_bases(kind) if name not in GIVEN else []:
        node = own_functions(owner).get("__init__")
        if node is not None:
            return f"{name}{signature(node)}"
    return name


def members(kind: type) -> Iterator[str]:
    """Fields first, then methods, those of the class itself before those of its bases."""
    seen: set[str] = set()
    for owner in own_bases(kind):
        tree = parse(owner)
        assert isinstance(tree, ast.ClassDef)
        for text, name, told in [*fields(tree), *methods(tree)]:
            is_hidden = isinstance(kind, EnumType) or (owner.__name__, name) in OF_THE_WORKER
            if name not in seen and not is_hidden:
                seen.add(name)
                yield ""
                yield from entry(text, told, "    ")


def own_bases(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base.__module__.startswith("leaseway")]


def fields(tree: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    for number, node in enumerate(tree.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and is_public(node.target.id):
            default = "" if node.value is None else f" = {ast.unparse(node.value)}"
            yield f"{node.target.id}: {annotation(node.annotation)}{default}", node.target.id, note(tree.body, number)
    for function in functions(tree).values():
        if function.name == "__init__":
            yield from attributes(function)


def attributes(init: Function) -> Iterator[tuple[str, str, str]]:
    """Attributes that the constructor sets."""
    for number, node in enumerate(init.body):
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        if isinstance(target, ast.Attribute) and is_public(target.attr) and ast.unparse(target.value) == "self":
            of = f": {annotation(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
            yield f"{target.attr}{of}", target.attr, note(init.body, number)


def note(body: list[ast.stmt], number: int) -> str:
    """The text below a field."""
    following = body[number + 1] if number + 1 < len(body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return paragraph(inspect.cleandoc(str(following.value.value)))
    return ""


def methods(tree: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    for node in functions(tree).values():
        if is_public(node.name):
            marks = {ast.unparse(each) for each in node.decorator_list}
            if marks & {"property", "cached_property"}:
                returned = "" if node.returns is None else f": {annotation(node.returns)}"
                yield f"{node.name}{returned}", node.name, summary(node)
            else:
                yield f"{prefix(node)}{node.name}{signature(node)}", node.name, summary(node)


def functions(tree: ast.ClassDef) -> dict[str, Function]:
    """By name. Of overloads, the last one is the implementation, and the one before it says more."""
    found: dict[str, Function] = {}
    for node in tree.body:
        if isinstance(node, Function):
            is_documented = bool(ast.get_docstring(node))
            if node.name not in found or is_documented or not ast.get_docstring(found[node.name]):
                found[node.name] = node
    return found


def own_functions(kind: type) -> dict[str, Function]:
    tree = parse(kind)
    assert isinstance(tree, ast.ClassDef)
    return functions(tree)


# -- text -------------------------------------------------------------------------------------------------------------


def entry(head: str, told: str, indent: str) -> Iterator[str]:
    yield from wrap(head, indent, indent + "        ")
    yield from wrap(told, indent + "    ", indent + "    ")


def wrap(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def prefix(node: Function) -> str:
    marks = {ast.unparse(each) for each in node.decorator_list}
    is_manager = marks & {"contextmanager", "asynccontextmanager", "contextlib.asynccontextmanager"}
    if is_manager:
        return "with " if "contextmanager" in marks else "async with "
    return "await " if isinstance(node, ast.AsyncFunctionDef) else ""


def signature(node: Function) -> str:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for argument in every:
        if argument is not None and argument.annotation is not None:
            argument.annotation = ast.Name(annotation(argument.annotation))
    text = SPACED_DEFAULT.sub(r"\1 = ", ast.unparse(arguments))
    for own in ("self, ", "cls, ", "self", "cls"):
        if text.startswith(own):
            text = text.removeprefix(own)
            break
    text = text.removeprefix("/, ").removeprefix("/")
    if node.name == "__init__" or node.returns is None:
        return f"({text})"
    return f"({text}) -> {annotation(node.returns)}"


def annotation(node: ast.expr) -> str:
    """Without the quotes that some annotations need in the source."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    for each in ast.walk(node):
        for field, value in ast.iter_fields(each):
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                setattr(each, field, ast.Name(value.value))
    return ast.unparse(node)


def summary(node: Function) -> str:
    return paragraph(ast.get_docstring(node) or "")


def paragraph(text: str) -> str:
    """The first paragraph on one line."""
    return " ".join(text.split("\n\n")[0].split())


def is_public(name: str) -> bool:
    return not name.startswith("_")


def parse(value: Any) -> ast.stmt:
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value)))).body[0]


def main() -> None:
    by_hand, mark, _ = PAGE.read_text("utf-8").partition(MARK)
    PAGE.write_text(by_hand + (mark or MARK) + render_page(), "utf-8")


if __name__ == "__main__":
    main()
