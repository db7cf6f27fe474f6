"""Paths into JSON documents: the small part of JSONPath that imports need.

    $   $.name   $['any name']   $[0]   $[-1]   $.items[*]   $.links[?rel=='next'].href   and Address.Title for
    $.Address.Title

A path is compiled once and used for every record. A missing value is `MISSING`, which is not null. `decode_body` reads
the documents.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from leaseway.domain.errors import BadValue

LENGTH_MAX = 500
STEPS_MAX = 20


class Missing(Enum):
    MISSING = "missing"


MISSING: Final = Missing.MISSING
EVERY: Final = None
"""The step `[*]`."""


class FirstWhere(NamedTuple):
    """The step `[?name=='value']`: the first item of a list whose field has this value."""

    name: str
    value: str


Step = str | int | FirstWhere | None

DOT_NAME = re.compile(r"\.([^\W\d][\w-]*)")
FIRST_NAME = re.compile(r"[^\W\d][\w-]*")
QUOTED = re.compile(r"\[\s*(?:'([^'\\]+)'|\"([^\"\\]+)\")\s*\]")
INDEX = re.compile(r"\[\s*(-?\d{1,9})\s*\]")
WHERE = re.compile(r"""\[\s*\?\s*\(?\s*(?:@\.)?([^\W\d][\w-]*)\s*==\s*(?:'([^'\\]*)'|"([^"\\]*)")\s*\)?\s*\]""")
STAR = re.compile(r"\[\s*\*\s*\]|\.\*")


class JsonPath:
    """A compiled path. Paths are equal if their steps are equal."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps
        self.has_star = EVERY in steps
        self.first: Callable[[Any], Any] = compile_getter(steps)
        """The value, or MISSING. For a path with [*], the first of several values."""

    def all(self, document: Any) -> list[Any]:
        """All values, in document order."""
        return select_all(self.steps, document)

    def __str__(self) -> str:
        return "$" + "".join(render_step(step) for step in self.steps)

    def __repr__(self) -> str:
        return f"Path({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonPath) and other.steps == self.steps

    def __hash__(self) -> int:
        return hash(self.steps)


def parse_path(field: str, text: object) -> JsonPath:
    """Compile a path, or report the character at which it is invalid."""
    if not isinstance(text, str):
        raise BadValue(field, f"must be a path such as '$.items' (is {text!r})")
    if not text or len(text) > LENGTH_MAX:
        raise BadValue(field, f"must be a path of 1 to {LENGTH_MAX} characters, such as '$.items' (is {text[:40]!r})")
    steps = tuple(parse_steps(field, text))
    if len(steps) > STEPS_MAX:
        raise BadValue(field, f"has {len(steps)} steps; at most {STEPS_MAX} are followed")
    return JsonPath(steps)


def parse_steps(field: str, text: str) -> Iterator[Step]:
    at = 0
    if text.startswith("$"):
        at = 1
    elif (found := FIRST_NAME.match(text)) is not None:
        yield found[0]
        at = found.end()
    else:
        raise path_error(field, text, 0)
    while at < len(text):  # each iteration advances or raises
        step, at = parse_step(field, text, at)
        yield step


def parse_step(field: str, text: str, at: int) -> tuple[Step, int]:
    if (found := DOT_NAME.match(text, at)) is not None:
        return found[1], found.end()
    if (found := STAR.match(text, at)) is not None:
        return EVERY, found.end()
    if (found := QUOTED.match(text, at)) is not None:
        return found[1] or found[2], found.end()
    if (found := INDEX.match(text, at)) is not None:
        return int(found[1]), found.end()
    if (found := WHERE.match(text, at)) is not None:
        return FirstWhere(found[1], found[2] or found[3] or ""), found.end()
    raise path_error(field, text, at)


def path_error(field: str, text: str, at: int) -> BadValue:
    rest = text[at:]
    if rest.startswith(".."):
        problem = "'..' is not supported; write the whole path"
    elif rest.startswith("[?") or rest.startswith("[("):
        problem = "the only filter is [?name=='value']"
    elif re.match(r"\[[^\]]*:", rest):
        problem = "slices are not supported; write [0], [-1] or [*]"
    elif rest == ".":
        problem = "a name must follow the dot"
    else:
        problem = "expected .name, ['name'], [0] or [*]"
    return BadValue(field, f"{text!r} is not a path: at character {at + 1} ({rest[:12]!r}), {problem}")


def render_step(step: Step) -> str:
    if step is EVERY:
        return "[*]"
    if isinstance(step, int):
        return f"[{step}]"
    if isinstance(step, FirstWhere):
        return f"[?{step.name}=='{step.value}']"
    if FIRST_NAME.fullmatch(step):
        return f".{step}"
    quote = '"' if "'" in step else "'"
    return f"[{quote}{step}{quote}]"


def select_all(steps: tuple[Step, ...], document: Any) -> list[Any]:
    found = [document]
    for step in steps:
        found = [each for value in found for each in select_children(value, step)]
    return found


def select_children(value: Any, step: Step) -> list[Any]:
    if step is EVERY:
        if isinstance(value, list):
            return value
        return list(value.values()) if isinstance(value, dict) else []
    found = select_child(value, step)
    return [] if found is MISSING else [found]


def select_child(value: Any, step: str | int | FirstWhere) -> Any:
    if isinstance(step, str):
        return value.get(step, MISSING) if isinstance(value, dict) else MISSING
    if not isinstance(value, list):
        return MISSING
    if isinstance(step, int):
        return value[step] if -len(value) <= step < len(value) else MISSING
    return next((each for each in value if isinstance(each, dict) and each.get(step.name) == step.value), MISSING)


def compile_getter(steps: tuple[Step, ...]) -> Callable[[Any], Any]:
    """A function for these steps. It runs for every record, so the common cases have specialised versions."""
    if EVERY in steps:
        return lambda document: next(iter(select_all(steps, document)), MISSING)
    names = tuple(step for step in steps if step is not EVERY)
    if len(names) == 1 and isinstance(names[0], str):
        only = names[0]
        return lambda document: document.get(only, MISSING) if isinstance(document, dict) else MISSING

    if len(names) == 2 and isinstance(names[0], str) and isinstance(names[1], str):
        outer, inner = names

        def follow_two(document: Any) -> Any:
            if not isinstance(document, dict):
                return MISSING
            found = document.get(outer)
            return found.get(inner, MISSING) if isinstance(found, dict) else MISSING

        return follow_two

    def follow(document: Any) -> Any:
        for step in names:
            document = select_child(document, step)
            if document is MISSING:
                return MISSING
        return document

    return follow


# -- the body of a reply ---------------------------------------------------------------------------------------------

BOM = b"\xef\xbb\xbf"


class NotANumber:
    """A constant or a number that JSON cannot represent. No encoder accepts it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def decode_body(content: bytes) -> Any:
    """JSON, read as tolerantly as it is safe. Many servers write NaN and Infinity, which JSON does not have. Outside
    the records such a value does no harm. A record that contains one cannot be encoded again, so it becomes a bad row,
    and the other records of the page are kept.
    """
    try:
        return msgspec.json.decode(content.removeprefix(BOM))
    except ValueError:
        # Slower, but it accepts lone surrogates and constants: one record must not fail the whole page.
        return json.loads(content.removeprefix(BOM), parse_constant=NotANumber, parse_float=parse_float)


def parse_float(text: str) -> Any:
    """1e999 would become infinite, and be stored as null."""
    value = float(text)
    return value if math.isfinite(value) else NotANumber(text)
