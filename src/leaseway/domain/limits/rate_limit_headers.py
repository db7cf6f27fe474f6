"""What a provider's reply reports about its rate limits: status, headers, and the error code in the body.

    Retry-After                        seconds, or a date; also Retry-After-Ms
    RateLimit, RateLimit-Policy        the IETF draft, by policy: "minute";r=3;t=20
    RateLimit-Remaining, -Reset        the older draft and the variants of vendors: X-RateLimit-…, X-Rate-Limit-…,
                                       …-Remaining-Requests, …-Tokens-Reset, …-Remaining-Minute

Headers that cannot be parsed are ignored, times are capped at 31 days, and nothing here raises.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import islice

from msgspec import Struct

from leaseway.domain.errors import TransientError
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.limit import COUNT_MAX, REQUESTS, UNITS_US
from leaseway.domain.validators import EPOCH, MICROSECOND, Seconds, parse_duration_us

WAIT_US_MAX = 31 * 86_400 * SECOND_US
HEADERS_MAX = 200
NAME_MAX = 100
TEXT_MAX = 2_000
ITEMS_MAX = 100
"""Policies in the headers of one reply."""
BODY_MAX = 16_000
"""The part of an error's body that is searched for a code."""

THROTTLED = frozenset({429, 529})
"""529: the provider is overloaded."""
UNAVAILABLE = 503
"""With Retry-After it throttles; without, it is a fault like any other."""
FAULT_MIN, NOT_IMPLEMENTED = 500, 501
UNAUTHORIZED, FORBIDDEN = 401, 403
PAYMENT_REQUIRED = 402

INSTANT_MIN = 1_000_000_000
"""Larger numbers are seconds since 1970; as a duration they would be thirty years."""
INSTANT_MS_MIN = 100_000_000_000
"""Larger numbers are milliseconds since 1970."""

DURATION_US = {"d": 86_400 * SECOND_US, "h": 3_600 * SECOND_US, "m": 60 * SECOND_US, "s": SECOND_US, "ms": 1_000}

NUMBER = re.compile(r"[0-9]{1,30}(?:\.[0-9]{1,30})?")
DURATION = re.compile(r"(?:[0-9]{1,12}(?:\.[0-9]{1,12})?(?:ms|[dhms]))+")
DURATION_PART = re.compile(r"([0-9.]+)(ms|[dhms])")
QUOTA_NAME = re.compile(
    r"(?:[a-z0-9]+-){0,3}?rate-?limit-(?:(?P<before>[a-z-]{1,40})-)?(?P<what>remaining|reset)(?:-(?P<after>[a-z-]{1,40}))?"
)
REPORTING = re.compile(r"rate-?limit|retry-after", re.IGNORECASE)
"""Is in the name of every header that is read here, except Date."""
QUOTED = r'"(?:[^"\\]|\\.?)*+(?:"|\Z)'
"""A text that is not closed goes to the end: each character is read once, whatever a provider sends."""
BETWEEN_COMMAS = re.compile(rf'(?:{QUOTED}|[^",])+', re.DOTALL)
BETWEEN_SEMICOLONS = re.compile(rf'(?:{QUOTED}|[^";])+', re.DOTALL)
CODE = re.compile(r'"(?:code|type|status|reason|error)"\s{0,9}:\s{0,9}"([^"\s]{1,200})"')
NAMED_UNITS = frozenset({REQUESTS, "tokens", "input_tokens", "output_tokens"})
FINAL_CODES = (
    "insufficientquota",
    "insufficientcredit",
    "insufficientfund",
    "insufficientbalance",
    "paymentrequired",
    "billing",
    "accountdeactivated",
    "accountsuspended",
)


class Throttled(TransientError):
    """The provider asks for a longer wait than a handler should make. The job is released and waits in its lane; the
    attempt is not counted. `ctx.http` and `call.report` raise it, and a handler may raise it itself.

    `retry_after`: the wait in seconds or as a timedelta; ten seconds if the provider does not say.
    """

    def __init__(self, message: str = "the provider asks for a wait", retry_after: Seconds | None = None) -> None:
        super().__init__(message)
        self.retry_after_us = None if retry_after is None else parse_duration_us("retry_after", retry_after)


class TooLarge(TransientError):
    """A reply is larger than a process should hold."""


class RateLimitStatus(Struct, frozen=True):
    """What one reply reports. None: it does not say."""

    throttled: bool = False
    """Too many requests: the whole fleet must slow down. Never set together with `is_final`."""
    retry_after_us: int | None = None
    remaining: int | None = None
    """The requests left under the policy with the fewest."""
    reset_us: int | None = None
    """How long until that policy resets."""
    is_final: bool = False
    """No credit or no contract: waiting does not help."""
    others: tuple["RemainingQuota", ...] = ()
    """What is left in other units than requests, such as tokens: one quota per unit."""
    unit: str = ""
    """The unit that a refusal is about, if its body says so."""
    is_fault: bool = False
    """The provider could not serve the call: it did not reply, or answered with 5xx and asked for no wait."""
    is_unauthorized: bool = False
    """The key of the call is not valid, or not any more."""

    def quota(self, unit: str) -> "RemainingQuota | None":
        """What is left in this unit. None: the reply does not say."""
        if unit != REQUESTS:
            return next((each for each in self.others if each.unit == unit), None)
        return None if self.remaining is None else RemainingQuota(self.remaining, self.reset_us)

    def refuses(self, unit: str, cost: int) -> bool:
        """Whether a refusal names the limit of this unit: in its body, or because less is left than the call needs."""
        if self.unit:
            return self.unit == unit
        quota = self.quota(unit)
        return quota is not None and quota.remaining < cost


class RemainingQuota(Struct, frozen=True):
    """What is left under one policy, and until when."""

    remaining: int
    reset_us: int | None = None
    unit: str = REQUESTS


NOTHING_REPORTED = RateLimitStatus()
NO_REPLY = RateLimitStatus(is_fault=True)

Texts = dict[str, list[str]]
"""The values of each header, by its name in lower case."""


def parse_rate_limits(
    status: int, headers: Collection[tuple[str, str]], body: str = "", now: Instant | None = None
) -> RateLimitStatus:
    """`now`: the local time in microseconds since 1970, used only if the reply has no Date header."""
    if status < 400 and not reports_limits(headers):
        return NOTHING_REPORTED
    texts = collect_headers(headers)
    now = reply_time(texts, now)
    rooms = [*quotas_from_policies(texts), *quotas_from_names(texts, now)]
    requests = scarcest(rooms, REQUESTS)
    retry_after_us = retry_after(texts, now)
    is_final = is_permanent(status, body)
    throttled = not is_final and is_throttle(status, retry_after_us, requests)
    if throttled and retry_after_us is None:
        retry_after_us = reset_wait_us(rooms)
    return RateLimitStatus(
        throttled,
        retry_after_us,
        requests.remaining if requests else None,
        requests.reset_us if requests else None,
        is_final,
        tuple(each for unit in units_of(rooms) if (each := scarcest(rooms, unit)) is not None),
        unit_in_body(body) if throttled else "",
        status >= FAULT_MIN and status != NOT_IMPLEMENTED and not throttled,
        status == UNAUTHORIZED,
    )


def reports_limits(headers: Collection[tuple[str, str]]) -> bool:
    """Whether a header may say something about limits. Most replies have none, and parsing them takes ten times as
    long as this look at their names."""
    return REPORTING.search("\n".join([name for name, _ in headers])) is not None


def throttled_error(status_code: int, status: RateLimitStatus, where: str = "") -> Throttled:
    wait_us = status.retry_after_us
    wait = f"asks for a wait of {wait_us / SECOND_US:g} s" if wait_us else "asks for a wait"
    message = f"{where}status {status_code}, the provider {wait}"
    return Throttled(message, None if wait_us is None else timedelta(microseconds=wait_us))


def collect_headers(headers: Iterable[tuple[str, str]]) -> Texts:
    texts: Texts = {}
    for name, text in islice(headers, HEADERS_MAX):
        if len(name) <= NAME_MAX and len(text) <= TEXT_MAX:
            texts.setdefault(name.strip().lower(), []).append(text.strip())
    return texts


def reply_time(texts: Texts, now: Instant | None) -> Instant | None:
    """The provider's time, because its reset times refer to its own clock."""
    for text in texts.get("date", ()):
        if (date := parse_date_us(text)) is not None:
            return date
    return now


# -- throttling -------------------------------------------------------------------------------------------------------


def is_permanent(status: int, body: str) -> bool:
    """Only error codes are searched, because the message of a temporary refusal may link to a billing page."""
    if status < 400:
        return False
    codes = ["".join(filter(str.isalnum, code)).lower() for code in CODE.findall(body[:BODY_MAX])]
    return status == PAYMENT_REQUIRED or any(final in code for code in codes for final in FINAL_CODES)


def is_throttle(status: int, retry_after_us: int | None, requests: RemainingQuota | None) -> bool:
    """Some providers throttle with 403 instead of 429."""
    if status in THROTTLED:
        return True
    is_empty = requests is not None and requests.remaining == 0
    return (status in (UNAVAILABLE, FORBIDDEN) and retry_after_us is not None) or (status == FORBIDDEN and is_empty)


def unit_in_body(body: str) -> str:
    """The unit that a refusal names: {"error": {"type": "tokens", …}}."""
    return next((code for code in CODE.findall(body[:BODY_MAX]) if code in NAMED_UNITS), "")


def retry_after(texts: Texts, now: Instant | None) -> int | None:
    """The longest Retry-After, if there are several."""
    waits = [parse_wait_us(text, now) for text in texts.get("retry-after", ())]
    # Retry-After-Ms is more precise than the rounded seconds.
    exact = [parse_wait_us(f"{text}ms", now) for text in texts.get("retry-after-ms", ())]
    return max((wait for wait in exact or waits if wait is not None), default=None)


def reset_wait_us(rooms: Iterable[RemainingQuota]) -> int | None:
    """Without Retry-After, wait until every exhausted policy resets."""
    return max((room.reset_us for room in rooms if room.remaining == 0 and room.reset_us is not None), default=None)


# -- what is left -----------------------------------------------------------------------------------------------------


def scarcest(rooms: Iterable[RemainingQuota], unit: str) -> RemainingQuota | None:
    """The quota with the fewest left; of several, the one that resets last."""
    of_unit = [room for room in rooms if room.unit == unit]
    return min(of_unit, key=lambda room: (room.remaining, -(room.reset_us or 0)), default=None)


def units_of(rooms: Iterable[RemainingQuota]) -> list[str]:
    """The units other than requests, sorted."""
    return sorted({room.unit for room in rooms} - {REQUESTS})


def quotas_from_policies(texts: Texts) -> Iterator[RemainingQuota]:
    """RateLimit: "minute";r=3;t=20, "day";r=900    or, in an older draft: limit=100, remaining=50, reset=5"""
    policies = dict(parse_items(texts.get("ratelimit-policy", ())))
    flat: dict[str, str] = {}
    for name, values in parse_items(texts.get("ratelimit", ())):
        flat.update(values if "r" not in values else {})
        policy = policies.get(name, {})
        remaining, reset_us = (
            parse_count(values.get("r", "")),
            parse_wait_us(values.get("t", policy.get("w", "")), None),
        )
        if remaining is not None:
            yield RemainingQuota(remaining, reset_us, quota_unit(policy.get("qu", REQUESTS)))
    remaining = parse_count(flat.get("remaining", ""))
    if remaining is not None:
        yield RemainingQuota(remaining, parse_wait_us(flat.get("reset", ""), None))


def parse_items(texts: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """A list of structured fields (RFC 9651): each item with its parameters."""
    items = (found[0] for text in texts for found in BETWEEN_COMMAS.finditer(text))
    for item in islice(items, ITEMS_MAX):
        parts = [part.strip() for part in BETWEEN_SEMICOLONS.findall(item)]
        pairs = (part.partition("=") for part in parts)
        values = {key.strip(): value.strip().strip('"') for key, equals, value in pairs if equals}
        yield parts[0].strip('"') if parts else "", values


def quotas_from_names(texts: Texts, now: Instant | None) -> Iterator[RemainingQuota]:
    """One quota per suffix: X-RateLimit-Remaining-Requests and X-RateLimit-Reset-Requests belong together."""
    remaining: dict[str, int] = {}
    reset_us: dict[str, int] = {}
    for name, values in texts.items():
        if (found := QUOTA_NAME.fullmatch(name)) is None:
            continue
        ending = found["before"] or found["after"] or ""
        if found["what"] == "remaining":
            counts = [parse_count(part) for value in values for part in value.split(",")]
            least = min((count for count in counts if count is not None), default=None)
            if least is not None:
                remaining[ending] = min(least, remaining.get(ending, least))
        else:
            waits = [parse_wait_us(value, now) for value in values]
            most = max((wait for wait in waits if wait is not None), default=None)
            if most is not None:
                reset_us[ending] = max(most, reset_us.get(ending, most))
    for ending, count in remaining.items():
        yield RemainingQuota(count, reset_us.get(ending, UNITS_US.get(ending)), quota_unit(ending))


def quota_unit(ending: str) -> str:
    """Input and output tokens are limited apart, and together as tokens."""
    if ending in ("", REQUESTS) or ending in UNITS_US:
        return REQUESTS
    unit = ending.replace("-", "_")
    return unit if unit in NAMED_UNITS or "token" not in unit else "tokens"


# -- numbers and times ------------------------------------------------------------------------------------------------


def parse_count(text: str) -> int | None:
    text = text.strip()
    return min(int(text.partition(".")[0]), COUNT_MAX) if NUMBER.fullmatch(text) else None


def parse_wait_us(text: str, now: Instant | None) -> int | None:
    """A wait in microseconds, given as seconds, as a duration such as 1m30s, or as a point in time."""
    text = text.strip()
    if NUMBER.fullmatch(text):
        number = float(text)
        if number < INSTANT_MIN:
            return clamp_us(number * SECOND_US)
        instant = number * (1_000 if number >= INSTANT_MS_MIN else SECOND_US)
        return None if now is None else clamp_us(instant - now)
    if DURATION.fullmatch(text):
        return clamp_us(sum(parse_number(part) * DURATION_US[unit] for part, unit in DURATION_PART.findall(text)))
    date = parse_date_us(text)
    return None if date is None or now is None else clamp_us(date - now)


def parse_number(text: str) -> float:
    return float(text) if NUMBER.fullmatch(text) else 0.0


def clamp_us(duration_us: float) -> int:
    # Rounded up, because a call that comes a microsecond early is refused again.
    return min(max(-int(-duration_us // 1), 0), WAIT_US_MAX)


def parse_date_us(text: str) -> Instant | None:
    """Parse an HTTP date or an ISO 8601 date."""
    try:
        date = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
        return ((date if date.tzinfo else date.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
