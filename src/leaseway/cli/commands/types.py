"""Durations and points in time, as people write them."""

import re
from datetime import datetime
from typing import Any

import click

from leaseway.cli.settings import NONE

UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Duration(click.ParamType[Any]):
    """Seconds, or a number with one of the units s, m, h, d. Whether it makes sense is for the domain to say."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return value
        match = re.fullmatch(r"([+-]?\d+(?:\.\d+)?)\s*([smhd]?)", value.strip())
        if match is None:
            self.fail(f"{value!r} is no duration; write seconds, or for example 90s, 5m, 2h, 7d.", param, ctx)
        return float(match[1]) * UNIT_SECONDS[match[2]]


class Moment(click.ParamType[Any]):
    """ISO 8601; local time unless it says otherwise."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value.strip())
            return moment if moment.tzinfo is not None else moment.astimezone()
        except (ValueError, OverflowError):
            example = "2030-12-31T08:00 (local time) or 2030-12-31T08:00Z"
            self.fail(f"{value!r} is no point in time; write for example {example}.", param, ctx)


class CountOrNone(click.ParamType[Any]):
    """A whole number, or the word none, which takes a cap away. Whether it makes sense is for the domain to say."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        try:
            return NONE if value == NONE else int(value)
        except ValueError:
            self.fail(f"{value!r} is no whole number; write for example 5, or {NONE} for no cap.", param, ctx)


COUNT_OR_NONE = CountOrNone()
DURATION = Duration()
MOMENT = Moment()
