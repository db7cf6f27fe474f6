"""The options of `@app.importer` ─► a spec: the same fields, checks and hash as a TOML file.

How pages are requested is not part of the spec: that is the function's business, and its code is not part of the hash.
A run can be resumed with a corrected function.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Required, TypedDict

import msgspec
from msgspec.structs import replace

from leaseway.domain.errors import BadValue, TerminalError, UsageError
from leaseway.imports.spec.checks import check_budget, check_limits, check_resource, check_sink
from leaseway.imports.spec.model import (
    Boxes,
    ColumnSpec,
    Country,
    DeleteSettings,
    Filter,
    GuardSettings,
    IdRange,
    Incremental,
    OnBadRow,
    RunBudget,
    Spec,
    Stamp,
    Whole,
    Windows,
)
from leaseway.imports.spec.parser import Problems, parse_value, suggestion

GIVEN = ("shard", "cursor", "limit", "http")
SHOWN_LENGTH = 80

PageFunction = Callable[..., Any]


class BadPage(TerminalError):
    """A page function returned an invalid value, or has an error."""


def page_parameters(function: PageFunction) -> frozenset[str]:
    """Which of the four parameters the function takes, by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UsageError(f"{function!r} is not a page function: {error}") from error
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return frozenset(GIVEN)
    unknown = [each for each in parameters if each.default is each.empty and not is_page_parameter(each)]
    if unknown:
        raise BadValue(
            f"{describe_function(function)}: {unknown[0].name}",
            f"is not provided; a page function takes {', '.join(GIVEN)}",
        )
    return frozenset(each.name for each in parameters) & frozenset(GIVEN)


def is_page_parameter(parameter: inspect.Parameter) -> bool:
    is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return parameter.kind is parameter.VAR_POSITIONAL or (is_named and parameter.name in GIVEN)


def describe_function(function: PageFunction) -> str:
    name = str(getattr(function, "__qualname__", function)).rpartition("<locals>.")[2]
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{name}()" if code is None else f"{name}() in {Path(code.co_filename).name}, line {code.co_firstlineno}"


def error_line(error: BaseException, function: PageFunction) -> str:
    """The line in the function's own file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def describe_value(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {render_short(value)}"


def render_short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


NAME = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
PAGE_LIMIT = 100
FILTER_FIELDS = ("path", "values", "rows", "latitude", "longitude", "is_geodesic")
"""What the filter of a function may contain: the path in a record, and the possible values."""
DIVIDED_BY = {"id_range": "id", "country": "country", "window": "window", "box": "box"}
PLACES = {"sink.url": "sink", "sink.table": "table", "resource.page.limit": "page_limit", "budget": "budget"}

NOTHING = object()

Table = Mapping[str, Any]


class ImporterOptions(TypedDict, total=False):
    """As in a spec. Each option is a struct, or a table as in TOML."""

    key: Required[str]
    sink: Required[str]
    table: Required[str]
    stamp: str | Stamp | Table
    partition: Whole | IdRange | Country | Windows | Boxes | Table
    filters: Mapping[str, Filter | Table]
    ascending: bool
    """Records come in ascending order of their keys, and cursors are {"after": key}. The order is checked, and shards
    can be split at their cursor.
    """
    page_limit: int
    limits: str | Sequence[str]
    concurrency: int
    columns: Mapping[str, ColumnSpec | Table]
    volatile: Sequence[str]
    quality: Mapping[str, Table]
    on_bad_row: OnBadRow | Table
    guards: GuardSettings | Table
    incremental: Incremental | Table
    deletes: DeleteSettings | Table
    budget: RunBudget | Table


class DeclaredImporter(NamedTuple):
    """A page function with its spec."""

    spec: Spec
    function: Callable[..., Any]


class BadOption(UsageError):
    """Invalid options, with all problems."""


def declare_importer(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> DeclaredImporter:
    page_parameters(function)  # otherwise the error would appear with the first page, in a worker
    problems: Problems = list(unknown_options(name, options))
    data = {} if problems else build_spec_data(options, problems)
    spec = None if problems else parse_value(Spec, data, "", problems)
    if isinstance(spec, Spec):
        problems.extend(check_declared(spec))
    if problems or not isinstance(spec, Spec):
        said = (
            f"importer {name}: {rename_to_option(place)}: {rename_to_option(problem)}" for place, problem in problems
        )
        raise BadOption("\n".join(said))
    return DeclaredImporter(replace(spec, source=replace(spec.source, name=name)), function)


def unknown_options(name: object, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        yield (
            "name",
            f"must be lowercase letters, digits, _, . and -, and start with a letter (is {name!r})",
        )
    known = list(ImporterOptions.__annotations__)
    for option in options:
        if option not in known:
            yield "options", f"unknown option {option!r}{suggestion(option, known, list_all=True)}"


def build_spec_data(options: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """The spec as a TOML file would contain it. The name is checked separately, because it may contain dots."""
    said = {name: to_table(name, value, problems) for name, value in options.items() if value is not None}
    top = {name: said.pop(name) for name in ("budget",) if name in said}
    source = {name: said.pop(name) for name in ("limits", "concurrency") if name in said}
    sink = {place: said.pop(name) for name, place in (("sink", "url"), ("table", "table")) if name in said}
    if isinstance(source.get("limits"), str):
        source["limits"] = [source["limits"]]
    if isinstance(said.get("stamp"), str):
        said["stamp"] = {"field": said["stamp"]}
    if isinstance(said.get("deletes"), dict) and said["deletes"].get("flag") == {}:
        said["deletes"] = {**said["deletes"], "flag": {"params": {}}}  # the function requests the feed itself
    page = page_options(said.pop("ascending", False), said.pop("page_limit", PAGE_LIMIT), said)
    filters = filter_options(said.pop("filters", {}), page, said, problems)
    return {
        "version": 1,
        "source": {"name": "importer", **source},
        "resource": {**said, "page": page, "filters": filters},
        "sink": sink,
        **top,
    }


def to_table(name: str, value: Any, problems: Problems) -> Any:
    """A part of a spec as a plain table."""
    try:
        return msgspec.to_builtins(value, builtin_types=(bytes,))
    except (TypeError, ValueError) as error:
        problems.append((name, f"cannot be part of a spec: {error}"))
        return None


def page_options(is_ascending: Any, limit: Any, said: Mapping[str, Any]) -> dict[str, Any]:
    """Cursors are the last key, or any value that the function returns."""
    if not is_ascending:
        return {"cursor": "token", "param": "cursor", "next": "$.next", "limit": limit}
    start = {"start": 0} if partition_kind(said.get("partition")) == "id_range" else {}
    return {"cursor": "keyset", "param": "after", "limit": limit, **start}


def partition_kind(partition: Any) -> str:
    return str(partition.get("by", "")) if isinstance(partition, dict) else ""


def filter_options(given: Any, page: Table, said: Mapping[str, Any], problems: Problems) -> Any:
    """The function receives predicates. The partition determines which filters it must support."""
    if not isinstance(given, dict) or not all(isinstance(each, dict) for each in given.values()):
        return given  # the parser reports the problem
    partition = said.get("partition")
    then = partition_kind(partition.get("then")) if isinstance(partition, dict) else ""
    incremental = said.get("incremental")
    names = {DIVIDED_BY[kind] for kind in (partition_kind(partition), then) if kind in DIVIDED_BY}
    names |= {str(incremental.get("filter", "window"))} if isinstance(incremental, dict) else set()
    if page["cursor"] == "keyset":
        names.discard("id")  # the cursor is the lower bound
    by_key = {"id": {"path": said["key"]}} if "key" in said else {}
    wanted = {name: {**by_key.get(name, {}), **without_none(given.get(name, {}))} for name in sorted({*names, *given})}
    return {name: filter_option(name, each, problems) for name, each in wanted.items()}


def without_none(said: dict[str, Any]) -> dict[str, Any]:
    """Drop fields that are None."""
    return {field: value for field, value in said.items() if value is not None}


def filter_option(name: str, said: dict[str, Any], problems: Problems) -> dict[str, Any]:
    known = {field: value for field, value in said.items() if field in FILTER_FIELDS}
    for field, value in said.items():
        if field not in FILTER_FIELDS and value != getattr(Filter(), field, NOTHING):
            hint = f"the function sends its own requests; allowed are {', '.join(FILTER_FIELDS)}"
            problems.append((f"filters.{name}.{field}", f"is not for a function: {hint}"))
    if name == "box":
        return {"param": name, "box": "south,west,north,east", **known}
    has_values = name == "country" or known.get("values")
    return {"param": name, **known} if has_values else {"lower": name, "upper": name, **known}


def check_declared(spec: Spec) -> Iterable[tuple[str, str]]:
    yield from check_limits(spec.source.limits)
    yield from check_resource(spec.resource, is_file=False)
    yield from check_sink(spec.sink)
    if spec.budget is not None:
        yield from check_budget(spec.budget)
    partition, deletes = spec.resource.partition, spec.resource.deletes
    if deletes is not None and deletes.sweep is not None and deletes.sweep.confirm is not None:
        yield "deletes.sweep.confirm", "is not for a function, because single records cannot be requested; remove it"
    if isinstance(partition, IdRange) and not isinstance(partition.upper, int):
        yield "partition.upper", "must be the largest id, an integer: a function cannot look it up"


def rename_to_option(text: str) -> str:
    """Replace field names of a spec by option names."""
    for place, name in PLACES.items():
        text = text.replace(place, name)
    return text.replace("resource.", "").replace("source.", "")
