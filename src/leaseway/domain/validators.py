"""Checks of values that users give: names, whole numbers, durations, points in time, URLs, and JSON.

Arguments, results and cursors are encoded here, once. Values that not every store and language can read back are
refused, and the error names the field: NaN, lone surrogates, NUL characters, deep nesting, more than 256 KiB.
"""

import math
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import accumulate
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.signature.models import children, encode_custom

NAME_LENGTH_MAX = 200


def check_name(field: str, value: object) -> str:
    """Printable text of a bounded length."""
    if not isinstance(value, str):
        raise BadValue(field, f"must be a string (is {type(value).__name__})")
    if not value or len(value) > NAME_LENGTH_MAX or not value.isprintable():
        raise BadValue(field, f"must be 1 to {NAME_LENGTH_MAX} printable characters (is {value[:40]!r})")
    return value


def parse_texts(field: str, value: object) -> tuple[str, ...]:
    """A text is a sequence of letters, and would be as many texts. The error does not repeat it: it may be secret."""
    each = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else None
    if each is None or not all(isinstance(text, str) for text in each):
        what = "one text" if isinstance(value, str) else f"a {type(value).__name__}"
        raise BadValue(field, f"must be a list of texts (is {what})" if each is None else "must be a list of texts")
    return each


def parse_names(field: str, value: object) -> tuple[str, ...]:
    return tuple(check_name(field, each) for each in parse_texts(field, value))


def printable(text: str) -> str:
    """Text for one line: line breaks and other characters that a terminal would obey are written as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def check_int(field: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadValue(field, f"must be a whole number (is {value!r})")
    if not least <= value <= most:
        raise BadValue(field, f"must be between {least:,} and {most:,} (is {value:,})")
    return value


Seconds = float | timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
INSTANT_MAX = 253_402_300_800 * SECOND_US - 1
"""The last one of the year 9999. Later ones, and those before 1970, cannot be shown in every language."""
YEAR_SECONDS = 366 * 86_400
SECONDS_MAX = 10 * YEAR_SECONDS


def parse_instant(field: str, value: object) -> Instant:
    if not isinstance(value, datetime):
        raise BadValue(field, f"must be a datetime (is {value!r})")
    if value.tzinfo is None:
        raise BadValue(field, "needs a time zone, for example datetime.now(timezone.utc)")
    instant = (value - EPOCH) // MICROSECOND
    if not 0 <= instant <= INSTANT_MAX:
        raise BadValue(field, f"must be in the years 1970 to 9999, in UTC (is {value.isoformat()})")
    return instant


def parse_duration_us(field: str, value: object, least: float = 0, most: float = SECONDS_MAX) -> int:
    """Convert seconds or a timedelta to microseconds."""
    if isinstance(value, timedelta):
        microseconds = value // MICROSECOND
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= SECONDS_MAX:
        microseconds = round(value * SECOND_US)
    elif isinstance(value, int | float) and not isinstance(value, bool):  # too large, infinite, or not a number
        raise BadValue(field, f"must be between {least:,} and {most:,} seconds (is {value:,})")
    else:
        raise BadValue(field, f"must be seconds or a timedelta (is {value!r})")
    if not least * SECOND_US <= microseconds <= most * SECOND_US:
        raise BadValue(field, f"must be between {least:,} and {most:,} seconds (is {microseconds / SECOND_US:,})")
    return microseconds


PAYLOAD_BYTES_MAX = 256 * 1024
PAYLOAD_DEPTH_MAX = 64
BLOB_PREFIX = '{"$blob":"'
"""How the text starts that a job has instead of one that is in a blob store; see `domain.blob`."""
STARS = "*" * 10
"""What pydantic writes instead of a secret."""

_encoder = msgspec.json.Encoder(order="deterministic", decimal_format="string", enc_hook=encode_custom)


def encode_payload(value: Any, field: str, bytes_max: int = PAYLOAD_BYTES_MAX) -> str:
    """The JSON text of a value. `field` is its name in error messages. `bytes_max` is larger with a blob store."""
    try:
        text = _encoder.encode(value).decode()
    except UnicodeEncodeError as error:
        raise BadValue(field, "contains a lone surrogate, which is not a valid character") from error
    except RecursionError as error:
        raise BadValue(field, f"is nested deeper than {PAYLOAD_DEPTH_MAX} levels, or contains itself") from error
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise BadValue(field, f"cannot be written as JSON: {describe_problem(error)}") from error
    check_payload(text, value, field, bytes_max)
    return text


def describe_problem(error: Exception) -> str:
    """The encoder sorts the keys of a dict and the items of a set. Its errors are about that, and not about JSON."""
    text = str(error)
    if text.startswith("Only dicts with str keys"):
        return "the keys of a dict must be text, and no other type becomes text silently; write {str(key): …}"
    if text.startswith("'<' not supported"):
        return "the items of a set must be of one type; use a list"
    return text


def check_payload(text: str, value: Any, field: str, bytes_max: int) -> None:
    """Refuse values that JSON text hides. A cheap test comes first; a careful one follows only if it finds a sign."""
    check_size(text, field, bytes_max)
    if text.startswith(BLOB_PREFIX):
        raise BadValue(f"{field}.$blob", "is reserved for references to a blob store; use another name")
    if is_too_deep(text):
        raise BadValue(field, f"is nested deeper than {PAYLOAD_DEPTH_MAX} levels")
    if not is_flat(value):
        if "null" in text:
            # The encoder writes NaN and infinity as null, so a reader would get null where a number was sent.
            refuse_not_finite(value, field)
        if STARS in text:
            refuse_secrets(value, field)
    refuse_nul(text, field)


def is_flat(value: Any) -> bool:
    """A few named texts and integers, which hide nothing. To see that takes less time than to search a long text."""
    return (
        type(value) is dict
        and len(value) <= FLAT_PARTS_MAX
        and all(type(name) is str and type(part) in FLAT for name, part in value.items())
    )


def check_json(text: str, field: str) -> Any:
    """Refuse a text that is not the JSON of a value that `encode_payload` accepts. Returns the value."""
    check_size(text, field)
    if is_too_deep(text):
        raise BadValue(field, f"is nested deeper than {PAYLOAD_DEPTH_MAX} levels")
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise BadValue(field, f"must be JSON as text ({error})") from error
    refuse_nul(text, field)
    return value


def parse_stored(text: str | None) -> Any:
    """Stored JSON as a value. Text that is not JSON, or that a response could not carry, is returned as it is."""
    if text is None or is_too_deep(text):
        return text
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return text


def check_size(text: str, field: str, bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
    if len(text) > bytes_max or (not text.isascii() and len(text.encode()) > bytes_max):
        size = len(text.encode())
        way_out = "" if bytes_max > PAYLOAD_BYTES_MAX else ", or give the app a blob store: App(blobs=…)"
        raise BadValue(
            field,
            f"is {size:,} bytes of JSON; at most {bytes_max:,} are allowed. Store the data and submit its URL{way_out}",
        )


def is_too_deep(text: str) -> bool:
    """Most texts have few brackets, which shows that they are not."""
    if len(text) <= PAYLOAD_DEPTH_MAX:
        return False
    if not has_more(text, "[", PAYLOAD_DEPTH_MAX // 2) and not has_more(text, "{", PAYLOAD_DEPTH_MAX // 2):
        return False
    return is_deeper_than(outside_strings(text.encode(errors="surrogatepass")), PAYLOAD_DEPTH_MAX)


def has_more(text: str, character: str, most: int) -> bool:
    """Whether a character occurs more often than this. `str.find` searches with memchr, twenty times as fast as
    `str.count` on long texts, and this needs the first occurrences only."""
    at = -1
    for _ in range(most + 1):
        at = text.find(character, at + 1)
        if at < 0:
            return False
    return True


def outside_strings(raw: bytes) -> bytes:
    """JSON text without its strings, terminated or not. There is no Python loop over the text, which would block the
    event loop. A backslash outside of strings is an error that the JSON decoder finds before what follows it."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(raw.split(b'"')[::2])


def is_deeper_than(outside: bytes, depth_max: int, steps_max: int | None = None) -> bool:
    """Whether brackets are nested deeper than this. Unbalanced brackets are left to the JSON decoder.

    `outside`: the text without its strings. `steps_max`: look at this many brackets only."""
    steps = array("b", outside.translate(STEPS, NO_BRACKETS)[:steps_max])
    return max(accumulate(steps), default=0) > depth_max


NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One level deeper or less deep; -1 as a byte is 255."""


# -- values that JSON text hides --------------------------------------------------------------------------------------

ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*+\\u0000")
"""An escaped NUL, but not an escaped backslash that is followed by "u0000"."""
PLAIN = frozenset({str, int, float, bool, type(None)})
FLAT = PLAIN - {float}
FLAT_PARTS_MAX = 50
STEP_LENGTH_MAX = 40
PATH_LENGTH_MAX = 200


def refuse_nul(text: str, field: str) -> None:
    """`text` is valid JSON, so it has backslashes in strings only."""
    if "\\" in text and "\\u0000" in text and ESCAPED_NUL.search(text):
        path, _ = find_inside(msgspec.json.decode(text), has_nul) or ([], None)
        raise BadValue(render_path(field, path), "contains a NUL character, which not every store can keep")


def refuse_not_finite(value: Any, field: str) -> None:
    if (found := find_inside(value, is_not_finite)) is not None:
        path, number = found
        problem = f"is {number}, which JSON cannot represent; use null or a string instead"
        raise BadValue(render_path(field, path), problem)


def refuse_secrets(value: Any, field: str) -> None:
    if (found := find_inside(value, is_secret)) is not None:
        problem = "is a secret, which pydantic writes as stars; pass the name of the secret instead"
        raise BadValue(render_path(field, found[0]), problem)


def has_nul(value: object) -> bool:
    return isinstance(value, str) and "\0" in value


def is_secret(value: object) -> bool:
    return hasattr(value, "get_secret_value")


def is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def find_inside(value: Any, is_wanted: Callable[[object], bool]) -> tuple[list[str | int], Any] | None:
    """The first value of this kind, which may also be the name of a part, and the way to it, last step first.

    A payload of 256 KiB may have a long name around many values, so the way is built for the wanted value only."""
    value = value.value if isinstance(value, Enum) else value
    if is_wanted(value):
        return [], value
    for step, part in () if type(value) in PLAIN else children(value):
        found = ([], step) if is_wanted(step) else find_inside(part, is_wanted)
        if found is not None:
            return [*found[0], step], found[1]
    return None


def render_path(field: str, steps: Sequence[str | int]) -> str:
    """`steps`: last step first. Example: `arguments.places[3].name`."""
    path = field
    for step in reversed(steps):
        name = step if isinstance(step, int) or step.isprintable() else repr(step[:STEP_LENGTH_MAX])
        path += f"[{name}]" if isinstance(name, int) else f".{name[:STEP_LENGTH_MAX]}"
    return path if len(path) <= PATH_LENGTH_MAX else f"{path[:PATH_LENGTH_MAX]}…"


# -- URLs -------------------------------------------------------------------------------------------------------------

POSTGRES = ("postgresql", "postgres", "psql", "pgsql", "postgis")
"""How libpq, SQLAlchemy and the URL parsers for Django spell the scheme."""


def url_scheme(url: str) -> str:
    """The scheme of a URL in leaseway's spelling. The driver that SQLAlchemy's URLs name is left out:
    postgresql+asyncpg:// is postgresql, sqlite+aiosqlite:// is sqlite."""
    scheme = urlsplit(url).scheme
    kind = scheme.partition("+")[0]
    if kind in POSTGRES:
        return "postgresql"
    return kind if kind == "sqlite" else scheme


def in_schema(url: str, schema: str | None) -> str:
    """The URL with this schema, unless it names one itself. Only PostgreSQL has schemas."""
    if schema is None or url_scheme(url) != "postgresql":
        return url
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    if "schema" in dict(given):
        return url
    return urlunsplit(parts._replace(query=urlencode([*given, ("schema", schema)])))
