"""A field of a document ─► the value of a column.

Sources write numbers as text, and files have nothing but text: what says the same is taken, what does not is unfit.
"""

import math
import re
from collections.abc import Callable
from typing import Any

from leaseway.domain.imports.columns import ColumnType
from leaseway.domain.imports.shard import canonical
from leaseway.domain.imports.stamps import of_any

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1
WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
TRUTH = {True: True, False: False, "true": True, "false": False, "True": True, "False": False}
SHOWN_LENGTH = 80


class Unfit(Exception):
    """A record that cannot become a row, with the code under which it is kept."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code = code
        self.problem = problem


def converter_of(type_: ColumnType) -> Callable[[Any], Any]:
    return CONVERTERS[type_]


def text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return canonical(value)
    raise unfit("text", value)


def integer(value: Any) -> int | None:
    if type(value) is int and INTEGER_MIN <= value <= INTEGER_MAX:  # as most are
        return value
    if isinstance(value, str):
        if not value:
            return None
        if not WHOLE.fullmatch(value):
            raise unfit("a whole number", value)
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise unfit("a whole number", value)
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise Unfit("out_of_range", f"must fit into 64 bits (is {value})")
    return value


def real(value: Any) -> float | None:
    if type(value) is float:
        return value
    if value == "":
        return None
    try:
        number = float(value) if isinstance(value, str | int) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise unfit("a number", value)
    return number


def boolean(value: Any) -> bool | None:
    if value == "" and isinstance(value, str):
        return None
    truth = TRUTH.get(value) if isinstance(value, bool | int | str) else None
    if truth is None:
        raise unfit("true or false", value)
    return truth


def timestamp(value: Any) -> int | None:
    if value == "":
        return None
    instant = of_any(value)
    if instant is None:
        raise unfit("an instant", value)
    return instant


def unfit(what: str, value: Any) -> Unfit:
    is_now = repr(value)
    return Unfit("bad_type", f"must be {what} (is {is_now[:SHOWN_LENGTH]})")


CONVERTERS: dict[ColumnType, Callable[[Any], Any]] = {
    ColumnType.TEXT: text,
    ColumnType.INTEGER: integer,
    ColumnType.REAL: real,
    ColumnType.BOOLEAN: boolean,
    ColumnType.TIMESTAMP: timestamp,
    ColumnType.JSON: canonical,
}
