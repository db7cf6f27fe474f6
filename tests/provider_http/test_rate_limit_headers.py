"""Rate-limit headers of providers: many dialects and invalid values, which must never stop a worker."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits import rate_limit_headers
from leaseway.domain.limits.limit import COUNT_MAX
from leaseway.domain.limits.rate_limit_headers import (
    BODY_MAX,
    ITEMS_MAX,
    WAIT_US_MAX,
    RateLimitStatus,
    RemainingQuota,
    parse_items,
    parse_rate_limits,
)

NOW_S = 1_791_000_000
NOW_US = NOW_S * SECOND_US
DATE = "Sun, 04 Oct 2026 00:00:00 GMT"
"""The provider's clock in responses that contain a Date header; it differs from the local clock."""


def heard(status: int, *headers: tuple[str, str], body: str = "", now: int | None = NOW_US) -> RateLimitStatus:
    return parse_rate_limits(status, headers, body, now)


# -- invalid values -------------------------------------------------------------------------------------------------

NAMES = [
    "Retry-After",
    "Retry-After-Ms",
    "Date",
    "RateLimit",
    "RateLimit-Policy",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "X-RateLimit-Remaining-Requests",
    "X-RateLimit-Reset-Tokens",
    "X-Rate-Limit-Reset",
    "anthropic-ratelimit-tokens-remaining",
]
PIECES = [
    "1",
    "9" * 31,
    ".",
    "-",
    "e",
    "m",
    "ms",
    "s",
    '"',
    "\\",
    ";",
    ",",
    "=",
    "r",
    "t",
    "w",
    " ",
    ":",
    "T",
    "Z",
    "+",
]
WORDS = ["Mon", "Nov", "16", "2026", "99999", "04:10:00", "GMT", "+9999", "-0000", "٣", "½", "\0", "\ud800", "q=1"]
values = st.one_of(
    st.text(),
    st.lists(st.sampled_from(PIECES + WORDS), max_size=12).map("".join),
    st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join),
    st.from_regex(r"[0-9]{1,40}(\.[0-9]{1,40})?[a-z]{0,2}", fullmatch=True),
    st.datetimes().map(str),
)
names = st.one_of(st.sampled_from(NAMES), st.text())


@given(st.integers(), st.lists(st.tuples(names, values), max_size=6), st.text(), st.none() | st.integers(0, 2**53))
@example(429, [("Retry-After", "9" * 5_000)], "", NOW_US)
@example(429, [("Retry-After", "9" * 1_000), ("RateLimit-Remaining", "9" * 1_000)], "", NOW_US)
@example(429, [("Retry-After", "Mon, 01 Jan 0001 00:00:00 +2359")], "", NOW_US)
@example(429, [("Retry-After", "0001-01-01T00:00:00+23:59")], "", NOW_US)
@example(200, [("RateLimit", '"' * 1_999), ("Date", "Mon,,, 99")], "", None)
def test_no_text_of_a_provider_raises_or_leaves_the_bounds(
    status: int, headers: list[tuple[str, str]], body: str, now: int | None
) -> None:
    """Headers come from outside, so they must neither fail the job nor close a limit for years."""
    it = parse_rate_limits(status, headers, body, now)
    for duration_us in (it.retry_after_us, it.reset_us, *(each.reset_us for each in it.others)):
        assert duration_us is None or 0 <= duration_us <= WAIT_US_MAX
    for count in (it.remaining, *(each.remaining for each in it.others)):
        assert count is None or 0 <= count <= COUNT_MAX
    assert not (it.throttled and it.is_final)


@pytest.mark.parametrize("text", ['"' + '\\"' * 999, '"' + "\\" * 1_998, '"' + '\\",' * 600])
def test_a_text_that_is_not_closed_is_read_once(text: str) -> None:
    """A text of 2,000 escaped quotes was read again from each of them. 200 such headers stopped a worker for seconds,
    and its leases expired."""
    assert [name for name, _ in parse_items([text])] == [text.strip('"')]


def test_the_policies_of_a_reply_are_bounded() -> None:
    """A provider may send 200 headers with a thousand policies each, and every one of them would be parsed."""
    assert len(list(parse_items([",".join("abc")] * 200))) == ITEMS_MAX


@given(st.integers(200, 399), st.lists(st.tuples(names, values), max_size=6), st.integers(0, 2**53))
@example(200, [("X-RateLimit-Remaining", "3")], NOW_US)
@example(200, [("retry-AFTER", "3")], NOW_US)
@example(200, [("RateLimit", '"minute";r=3;t=20')], NOW_US)
def test_replies_that_are_not_parsed_report_nothing(status: int, headers: list[tuple[str, str]], now: int) -> None:
    """Successful replies are searched for names of such headers before they are parsed. A name that the search does not
    know would hide from the fleet that a limit is nearly used up."""
    with pytest.MonkeyPatch.context() as patch:
        found = parse_rate_limits(status, headers, "", now)
        patch.setattr(rate_limit_headers, "reports_limits", lambda _: True)
        assert found == parse_rate_limits(status, headers, "", now)


@pytest.mark.parametrize("text", ["", "soon", "-1", "NaN", "inf", "1e3", "0x10", "١٢", "1,5", "Mon", "9" * 5_000])
def test_a_wait_that_makes_no_sense_was_not_said(text: str) -> None:
    """A guess would either overload the provider or close its limit without a reason."""
    assert heard(429, ("Retry-After", text)) == RateLimitStatus(throttled=True)


def test_a_wait_of_years_is_cut() -> None:
    """One wrong header must not close a limit forever."""
    assert heard(429, ("Retry-After", "999999999")).retry_after_us == WAIT_US_MAX
    assert heard(429, ("Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT")).retry_after_us == WAIT_US_MAX


def test_an_instant_without_any_clock_was_not_said() -> None:
    """Without any clock, an instant cannot be converted to a duration."""
    assert heard(429, ("Retry-After", DATE), now=None).retry_after_us is None


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 204, 301, 304, 400, 401, 403, 404, 500, 502, 503, 504])
def test_only_what_says_so_slows_the_fleet(status: int) -> None:
    """Other errors say nothing about the permitted rate."""
    said = heard(status)
    assert (said.throttled, said.retry_after_us, said.remaining, said.is_final, said.others) == (
        False, None, None, False, ()
    )  # fmt: skip
    assert said.is_fault is (status >= 500), "for the circuit breaker"


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("120", 120), (" 7 ", 7), ("1.5", 1.5), (str(NOW_S + 90), 90), (str((NOW_S + 90) * 1_000), 90)],
)
def test_a_wait_in_seconds_is_heard(status: int, text: str, seconds: float) -> None:
    """This is the usual form, with the usual mistakes: fractions, and instants instead of durations."""
    assert heard(status, ("retry-after", text)) == RateLimitStatus(
        throttled=True, retry_after_us=int(seconds * SECOND_US)
    )


def test_a_date_counts_by_the_clock_of_the_reply() -> None:
    """The provider's clock differs from the local clock; with the local clock, the wait would be months or zero."""
    later = ("Retry-After", "Sun, 04 Oct 2026 00:01:30 GMT")
    assert heard(429, later, ("Date", DATE)).retry_after_us == 90 * SECOND_US
    assert heard(429, later, ("Date", DATE), now=None).retry_after_us == 90 * SECOND_US


@pytest.mark.parametrize("date", [[], [("Date", "yesterday")]])
def test_a_date_counts_by_our_clock_if_the_reply_has_none(date: list[tuple[str, str]]) -> None:
    """The date is still valid if the provider does not send its clock."""
    now = 1_791_072_000 * SECOND_US  # the instant of DATE
    assert heard(429, ("Retry-After", "Sun, 04 Oct 2026 00:00:05 GMT"), *date, now=now).retry_after_us == 5 * SECOND_US


def test_a_date_that_has_passed_means_now() -> None:
    """A negative wait would cause errors in later calculations."""
    assert heard(429, ("Retry-After", "Sat, 03 Oct 2026 00:00:00 GMT"), ("Date", DATE)).retry_after_us == 0


def test_of_several_waits_the_longest_counts() -> None:
    """A proxy and the provider behind it may both have sent a wait."""
    assert heard(429, ("Retry-After", "3"), ("Retry-After", "8")).retry_after_us == 8 * SECOND_US


def test_the_exact_wait_goes_before_the_rounded_one() -> None:
    """Rounding to whole seconds would cost a fast limit most of its rate."""
    assert heard(429, ("Retry-After", "1"), ("Retry-After-Ms", "120")).retry_after_us == 120_000


def test_a_refusal_without_a_wait_lasts_until_what_is_used_up_begins_anew() -> None:
    """Some providers send the wait only as a reset time; of two exhausted quotas, the later reset counts."""
    headers = [
        ("X-RateLimit-Remaining-Minute", "0"),
        ("X-RateLimit-Reset-Minute", "20"),
        ("X-RateLimit-Remaining-Hour", "0"),
        ("X-RateLimit-Reset-Hour", "900"),
        ("X-RateLimit-Remaining-Day", "5"),
        ("X-RateLimit-Reset-Day", "5000"),
    ]
    assert heard(429, *headers).retry_after_us == 900 * SECOND_US
    assert heard(200, *headers).retry_after_us is None


def test_a_refusal_hidden_in_a_403_is_seen() -> None:
    """GitHub refuses requests like this. A plain 403 must not count, or a wrong password would slow the fleet."""
    assert heard(403, ("Retry-After", "60")).throttled
    assert heard(403, ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "30")).retry_after_us == 30 * SECOND_US
    assert not heard(403, ("X-RateLimit-Remaining", "12")).throttled


# -- permanent refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        '{"error": {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": null}}',
        '{"error": {"code": "billing_hard_limit_reached"}}',
        '{"error":{"status":"PERMISSION_DENIED","details":[{"reason":"BILLING_DISABLED"}]}}',
        '{"type": "https://api.example/errors/insufficient-credits", "title": "No credit"}',
        '{"error": "payment_required"}',
    ],
)
def test_a_refusal_for_want_of_money_is_final(body: str) -> None:
    """Waiting does not help: the job would be retried forever, and the operator would not learn why."""
    it = heard(429, ("Retry-After", "20"), body=body)
    assert it.is_final
    assert not it.throttled


def test_402_is_final() -> None:
    """402 means "Payment Required", whatever the body says."""
    assert heard(402).is_final


@pytest.mark.parametrize(
    "body",
    [
        '{"error": {"code": "rate_limit_exceeded", "message": "Add a payment method at https://x.example/billing"}}',
        '{"error": {"message": "insufficient_quota is not what this is", "code": "rate_limit"}}',
        "insufficient_quota",
        " " * BODY_MAX + '{"code": "insufficient_quota"}',
        "",
    ],
)
def test_a_passing_refusal_that_only_mentions_money_is_not_final(body: str) -> None:
    """Closing a limit permanently that opens in a minute would stop the fleet without a reason."""
    it = heard(429, body=body)
    assert it.throttled
    assert not it.is_final


def test_a_success_is_never_final() -> None:
    """The body of a success is the user's data and may contain any words."""
    assert heard(200, body='{"code": "insufficient_quota"}') == RateLimitStatus()


# -- remaining quota ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [("RateLimit", '"default";r=50;t=30')],
        [("RateLimit", '"a, b; c";r=50;t=30')],
        [("RateLimit", '"day";r=900;t=4000, "minute";r=50;t=30')],
        [("RateLimit", '"day";r=900;t=4000'), ("RateLimit", '"minute";r=50;t=30')],
        [("RateLimit", '"minute";r=50'), ("RateLimit-Policy", '"day";q=9000;w=86400, "minute";q=100;w=30')],
        [("RateLimit", '"b";r=1;t=9,"r";r=50;t=30'), ("RateLimit-Policy", '"b";q=10;qu="content-bytes";w=1,"r";q=5')],
        [("RateLimit", "limit=100, remaining=50, reset=30")],
        [("RateLimit-Limit", "100"), ("RateLimit-Remaining", "50"), ("RateLimit-Reset", "30")],
        [("X-RateLimit-Limit", "100"), ("X-RateLimit-Remaining", "50"), ("X-RateLimit-Reset", "30")],
        [("X-Rate-Limit-Remaining", "50"), ("X-Rate-Limit-Reset", str(NOW_S + 30))],
        [("X-RateLimit-Remaining", "50"), ("X-RateLimit-Reset", f"{NOW_S + 30}.0")],
        [("X-RateLimit-Remaining", "50, 900"), ("X-RateLimit-Reset", "30")],
        [("X-RateLimit-Remaining", "50"), ("X-RateLimit-Reset", "Sun, 04 Oct 2026 00:00:30 GMT"), ("Date", DATE)],
        [("x-ratelimit-remaining-requests", "50"), ("x-ratelimit-reset-requests", "30s")],
        [("x-ratelimit-remaining-requests", "50"), ("x-ratelimit-reset-requests", "29s1000ms")],
        [("vendor-ratelimit-requests-remaining", "50"), ("vendor-ratelimit-requests-reset", "2026-10-04T00:00:30Z"),
         ("Date", DATE)],
    ],
    ids=lambda headers: headers[0][0] + " " + headers[0][1],
)  # fmt: skip
def test_what_is_left_is_heard_in_every_dialect(headers: list[tuple[str, str]]) -> None:
    """With this information, the fleet slows down before it is refused."""
    it = heard(200, *headers)
    assert it.quota("requests") == RemainingQuota(50, 30 * SECOND_US)
    assert not it.throttled


@pytest.mark.parametrize(
    ("text", "seconds"), [("1m30s", 90), ("6m0s", 360), ("20ms", 0.02), ("1h2m3.5s", 3_723.5), ("2d", 172_800)]
)
def test_durations_as_programs_print_them_are_heard(text: str, seconds: float) -> None:
    """Parsed as a plain number, 6m0s would be six seconds."""
    headers = [("x-ratelimit-remaining-requests", "1"), ("x-ratelimit-reset-requests", text)]
    assert heard(200, *headers).reset_us == seconds * SECOND_US


def test_a_models_tokens_are_not_taken_for_requests() -> None:
    """150,000 tokens of a language model are not 150,000 requests, and 5 remaining requests must not hold back
    tokens.
    """
    it = heard(
        200,
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-remaining-tokens", "20"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    )
    tokens = RemainingQuota(20, 360 * SECOND_US, "tokens")
    assert it == RateLimitStatus(remaining=59, reset_us=SECOND_US, others=(tokens,))
    assert it.quota("requests") == RemainingQuota(59, SECOND_US)
    assert it.quota("tokens") == tokens
    assert it.quota("input_tokens") is None


def test_input_and_output_tokens_are_apart() -> None:
    """A provider that limits them apart refuses a call for one of them; the other limit must stay open."""
    headers = [
        ("vendor-ratelimit-input-tokens-remaining", "40"),
        ("vendor-ratelimit-output-tokens-remaining", "7"),
        ("vendor-ratelimit-tokens-remaining", "47"),
    ]
    assert {each.unit: each.remaining for each in heard(200, *headers).others} == {
        "input_tokens": 40,
        "output_tokens": 7,
        "tokens": 47,
    }


@pytest.mark.parametrize(
    ("headers", "body", "units"),
    [
        ([("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-remaining-tokens", "9000")], "", ["requests"]),
        ([("x-ratelimit-remaining-requests", "9"), ("x-ratelimit-remaining-tokens", "20")], "", ["tokens"]),
        ([("x-ratelimit-remaining-tokens", "0")], '{"error": {"type": "requests"}}', ["requests"]),
        ([], '{"error": {"type": "tokens", "code": "rate_limit_exceeded"}}', ["tokens"]),
        ([("retry-after", "3")], "", []),
    ],
)
def test_a_refusal_says_which_limit_it_is_about(headers: list[tuple[str, str]], body: str, units: list[str]) -> None:
    """With 20 tokens left, a call of 500 tokens is refused because of its tokens, and the requests are not used up."""
    it = heard(429, *headers, body=body)
    costs = {"requests": 1, "tokens": 500}
    assert [unit for unit, cost in costs.items() if it.refuses(unit, cost)] == units


def test_a_window_named_in_the_header_says_when_it_begins_anew() -> None:
    """Without the window, the longest one would be treated as exhausted."""
    it = heard(200, ("X-RateLimit-Remaining-Minute", "4"), ("X-RateLimit-Remaining-Day", "700"))
    assert it == RateLimitStatus(remaining=4, reset_us=60 * SECOND_US)


def test_of_two_that_are_equally_scarce_the_longer_one_counts() -> None:
    """A day's quota that is used up is not restored when its last minute ends."""
    it = heard(200, ("RateLimit", '"minute";r=0;t=20, "day";r=0;t=4000, "hour";r=0;t=300'))
    assert it == RateLimitStatus(remaining=0, reset_us=4_000 * SECOND_US)
