"""A kind of job: its arguments are validated when they are submitted and again when they are read."""

import dataclasses
import enum
import typing
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

from leaseway.domain.errors import BadValue, LeasewayError, UsageError
from leaseway.domain.kind import SUBMIT_OPTIONS, Kind, KindDefaults
from leaseway.domain.validators import check_name


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Address(typing.TypedDict):
    city: str


class Line(msgspec.Struct):
    points: list[Point]


def kind(function: Callable[..., Any], name: str = "geocode") -> Kind:
    return Kind(name, function, KindDefaults())


async def geocode(ctx: object, address: str, precision: int = 3, *, tags: list[str] | None = None) -> None: ...


# -- invalid arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "geocode: .*missing required argument address"),
        ({"address": 1}, "geocode: address: expected str, got int"),
        ({"address": "x", "precision": "3"}, "geocode: precision: expected int, got str"),
        ({"address": "x", "tags": ["a", 1]}, r"geocode: tags\[1\]: expected str, got int"),
        ({"address": "x", "adress": "y"}, "geocode: .*unknown argument adress"),
        ({"address": None}, "geocode: address: expected str, got null"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_by_name(arguments: dict[str, object], message: str) -> None:
    """The caller that wrote the argument must get the error at submission, not a worker at night."""
    with pytest.raises(BadValue, match=message):
        kind(geocode).encode(arguments)


def test_the_name_of_an_argument_is_told_as_it_is_written() -> None:
    """The message is derived from another message, so any word in the name must survive."""

    def function(field_id: int, ObjectName: int = 1) -> None: ...

    with pytest.raises(BadValue, match=r"argument field_id$"):
        kind(function).encode({})
    with pytest.raises(BadValue, match=r"argument Objectfield$"):
        kind(function).encode({"field_id": 1, "Objectfield": 2})


def test_the_value_of_an_argument_does_not_confuse_the_message() -> None:
    """A value may contain the very words that separate the problem from its location."""

    def function(colour: Literal["red", "blue"]) -> None: ...

    with pytest.raises(BadValue, match=r"geocode: colour: invalid enum value 'a - at b'"):
        kind(function).encode({"colour": "a - at b"})


def test_an_argument_that_is_not_json_is_refused_by_name() -> None:
    """The rules for payloads apply to arguments."""
    with pytest.raises(BadValue, match=r"geocode.precision: is nan"):
        kind(geocode).encode({"address": "x", "precision": float("nan")})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", '{"address":"x"', '{"address":"x"}}', '{"address":"\\ud800"}', '{"address":"\ud800"}'],
    ids=ascii,
)
def test_text_that_is_no_payload_is_refused(text: str) -> None:
    """The command line passes text as it was typed, so the user reads every error about it."""
    with pytest.raises(BadValue, match="geocode"):
        kind(geocode).check(text)


def test_text_nested_without_end_is_refused() -> None:
    """A few kilobytes of brackets must not crash the process."""

    def function(value: Any) -> None: ...

    with pytest.raises(BadValue, match="nested"):
        kind(function).check('{"value":' + "[" * 100_000 + "]" * 100_000 + "}")


def test_a_payload_of_another_day_is_refused_by_name() -> None:
    """The function changed after the job was submitted, so the worker must fail the job and report why."""
    with pytest.raises((LeasewayError, msgspec.DecodeError), match="precision"):
        kind(geocode).decode('{"address":"x","precision":"three"}')


# -- functions that cannot be jobs --------------------------------------------------------------------------


def with_args(*args: int) -> None: ...
def with_kwargs(**kwargs: int) -> None: ...
def with_positional(a: int, /) -> None: ...


@pytest.mark.parametrize("function", [with_args, with_kwargs, with_positional])
def test_arguments_without_a_fixed_name_are_refused(function: Callable[..., Any]) -> None:
    """A payload is a JSON object, so every argument needs a name in it."""
    with pytest.raises(UsageError, match="has no fixed name"):
        kind(function)


@pytest.mark.parametrize("name", [*sorted(SUBMIT_OPTIONS), "self", "args", "kwargs"])
def test_arguments_may_have_the_names_of_options(name: str) -> None:
    """Options have a call of their own, so a user's own `key` or `timeout` is an argument like any other."""
    namespace: dict[str, Any] = {}
    exec(f"def function({name}): ...", namespace)
    assert kind(namespace["function"]).decode(kind(namespace["function"]).encode({name: 1})) == {name: 1}


async def async_generator(a: int) -> AsyncIterator[int]:
    yield a


def generator(a: int) -> Iterator[int]:
    yield a


class CallableGenerator:
    def __call__(self, a: int) -> Iterator[int]:
        yield a


@pytest.mark.parametrize(
    "function", [generator, async_generator, partial(generator), CallableGenerator()], ids=lambda f: type(f).__name__
)
def test_a_generator_is_refused_when_it_is_registered(function: Callable[..., Any]) -> None:
    """Its body would never run: calling it only makes a generator, which is not a result."""
    with pytest.raises(UsageError, match=r"job geocode: is a generator.*return a list, or call ctx.submit"):
        kind(function)


class Shop:
    def in_class(self, order: int) -> None: ...
    def of_class(cls, order: int) -> None: ...
    @staticmethod
    def static(order: int) -> None: ...


@pytest.mark.parametrize("function", [Shop.in_class, Shop.of_class])
def test_a_method_is_refused_when_it_is_registered(function: Callable[..., Any]) -> None:
    """`self` would be an argument that every submission lacks, and the error would come with the first of them."""
    with pytest.raises(
        UsageError, match=r"job geocode: is a method.*move it out of the class Shop, or make it a @stati"
    ):
        kind(function)


@pytest.mark.parametrize("function", [Shop.static, Shop().in_class])
def test_a_function_of_a_class_that_needs_no_object_is_accepted(function: Callable[..., Any]) -> None:
    """A bound method has its object, and a static one needs none."""
    assert kind(function).encode({"order": 1}) == '{"order":1}'


def complex_result() -> complex: ...  # type: ignore[empty-body]
def path_in_result() -> dict[str, list[Path]]: ...  # type: ignore[empty-body]
def coroutine_result() -> Coroutine[Any, Any, int]: ...  # type: ignore[empty-body]
def iterator_result() -> Iterator[int]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    "function", [complex_result, path_in_result, coroutine_result, iterator_result], ids=lambda f: f.__name__
)
def test_a_result_that_is_never_json_is_refused_when_it_is_registered(function: Callable[..., Any]) -> None:
    """Otherwise the work is done, and perhaps paid for, before the result is found to be unusable."""
    with pytest.raises(UsageError, match=r"job geocode: its result, \w+, cannot be stored as JSON; use numbers"):
        kind(function)


class Rows(list[int]): ...


class HasLength(typing.Protocol):
    def __len__(self) -> int: ...


T = typing.TypeVar("T")


@pytest.mark.parametrize(
    "annotation",
    [Any, object, typing.NoReturn, Point | dict[str, int], Rows, HasLength, Sequence[int], T, Iterable[int]],
    ids=str,
)
def test_a_result_that_may_be_json_is_accepted(annotation: Any) -> None:
    """An annotation can be wider than what a function returns."""

    def function() -> Any: ...

    function.__annotations__["return"] = annotation
    assert kind(function).decode_result([1]) == [1]


def unknown_name(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def broken_text(a: "int |") -> None: ...  # type: ignore[valid-type]  # noqa: F722
def two_objects(a: Point | dict[str, int]) -> None: ...
def private(__a: int = 1) -> None: ...


@pytest.mark.parametrize("function", [unknown_name, broken_text, two_objects, private], ids=lambda f: f.__name__)
def test_a_signature_that_cannot_be_read_is_refused_when_it_is_registered(function: Callable[..., Any]) -> None:
    """The message must name the job; a traceback would point into a library."""
    with pytest.raises(UsageError, match="job geocode"):
        kind(function)


def test_a_type_that_is_only_imported_for_the_checker_is_refused_with_the_way_out() -> None:
    """The usual cause of an unknown name is an import under TYPE_CHECKING."""
    with pytest.raises(UsageError, match=r"'Nowhere' is not defined; define its types at module level.*TYPE_CHECKING"):
        kind(unknown_name)


def test_a_type_that_json_cannot_fill_is_refused_when_it_is_registered() -> None:
    """Otherwise every submission would fail, which shows only at the first one."""

    def function(a: complex) -> None: ...

    with pytest.raises(UsageError, match="job geocode"):
        kind(function)


def test_callables_that_are_no_functions_are_refused_or_work() -> None:
    """A builtin without a signature must not end in a traceback from the standard library."""
    with pytest.raises(UsageError, match="job geocode"):
        kind(min)


# -- valid arguments ------------------------------------------------------------------------------------------------


def test_arguments_come_back_as_they_were_meant() -> None:
    """The function must get the types that its signature declares."""

    def function(  # type: ignore[no-untyped-def]
        when: datetime,
        amount: Decimal,
        point: Point,
        colour: Colour,
        raw: bytes,
        ratio: float,
        count: Annotated[int, msgspec.Meta(ge=1)],
        id: UUID,
        address: Address,
        line: Line,
        whatever: object,
        anything: Any,
        untyped=None,
    ) -> None: ...

    arguments = {
        "when": datetime(2025, 1, 1, tzinfo=UTC),
        "amount": Decimal("0.10"),
        "point": Point(1, 2),
        "colour": Colour.RED,
        "raw": b"\0\xff",
        "ratio": 1.0,
        "count": 1,
        "id": UUID(int=1),
        "address": Address(city="Bern"),
        "line": Line([Point(1, 2)]),
        "whatever": {"a": None},
        "anything": {"a": [1]},
        "untyped": [1, "x"],
    }
    this = kind(function)
    assert this.decode(this.encode(arguments)) == arguments
    with pytest.raises(BadValue, match="count"):
        this.encode(arguments | {"count": 0})


def test_defaults_are_those_of_the_day_it_runs() -> None:
    """An omitted argument is neither stored nor passed, so a changed default applies."""
    this = kind(geocode)
    assert this.encode({"address": "x"}) == '{"address":"x"}'
    assert this.decode('{"address":"x"}') == {"address": "x"}
    assert this.decode('{"address":"x","tags":null}') == {"address": "x", "tags": None}


def test_the_context_is_not_an_argument() -> None:
    """The worker passes the context, whatever its annotation."""
    this = kind(geocode)
    assert (this.takes_context, this.takes_nothing, this.is_async) == (True, False, True)
    with pytest.raises(BadValue, match="unknown argument ctx"):
        this.encode({"address": "x", "ctx": 1})

    def bare(ctx: typing.TextIO) -> None: ...

    assert (kind(bare).takes_context, kind(bare).takes_nothing, kind(bare).is_async) == (True, True, False)
    assert kind(bare).decode(kind(bare).encode({})) == {}

    def nothing() -> None: ...

    assert (kind(nothing).takes_context, kind(nothing).takes_nothing) == (False, True)


def test_a_fingerprint_tells_kinds_and_arguments_apart() -> None:
    """Only kind and arguments count; the order of the arguments must not matter."""
    this, other = kind(geocode), kind(geocode, "other")
    one = this.encode({"address": "x", "precision": 1})
    same = this.encode({"precision": 1, "address": "x"})
    assert this.fingerprint(one) == this.fingerprint(same)
    assert len({this.fingerprint(one), this.fingerprint("{}"), other.fingerprint(one)}) == 3


# -- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a\nb", "a\0", "a" * 201, "\ud800", "a\u200bb", 7, None, b"a"], ids=ascii)
def test_a_name_that_cannot_be_shown_is_refused(name: object) -> None:
    """Names are shown in logs, URLs and the dashboard."""
    with pytest.raises(BadValue, match="queue"):
        check_name("queue", name)


@pytest.mark.parametrize("name", ["a", "a" * 200, "geo code", "Łódź/北京:1"])
def test_a_name_may_be_any_printable_text(name: str) -> None:
    """Names in other languages and scripts must work."""
    assert check_name("queue", name) == name


def test_a_kind_with_an_impossible_name_is_refused() -> None:
    """The error must appear at registration."""
    with pytest.raises(BadValue, match="name"):
        kind(geocode, "")
