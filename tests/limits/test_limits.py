"""What users write about limits: parsed exactly, or refused with the field and the correction."""

from itertools import product

import pytest

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import Limit, Rate, parse_rate, permit_lease_us, size_limit, wire_delay_us
from leaseway.domain.limits.templates import fill_template, fills_template, template_fields
from leaseway.testing.limiter_contract.fixtures import left
from leaseway.wiring import limiter_at

MINUTE_US = 60 * SECOND_US


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/minute", Rate(MINUTE_US, 100)),
        ("3/second", Rate(SECOND_US, 3)),
        ("3/s", Rate(SECOND_US, 3)),
        ("20 per 2 s", Rate(2 * SECOND_US, 20)),
        ("20 per 2 seconds", Rate(2 * SECOND_US, 20)),
        ("200k/min", Rate(MINUTE_US, 200_000)),
        ("2M/day", Rate(86_400 * SECOND_US, 2_000_000)),
        ("1_000 / hour", Rate(3_600 * SECOND_US, 1_000)),
        ("1,000/1.5h", Rate(5_400 * SECOND_US, 1_000)),
        ("  5 per week ", Rate(7 * 86_400 * SECOND_US, 5)),
        ("5 per 500 ms", Rate(SECOND_US // 2, 5)),
        ("5/100milliseconds", Rate(SECOND_US // 10, 5)),
    ],
)
def test_a_rate_is_read_as_the_provider_writes_it(text: str, rate: Rate) -> None:
    """Users copy rates from the provider's documentation."""
    assert parse_rate("limit maps", text) == rate


def test_milliseconds_are_not_minutes() -> None:
    """Parsed as a plural, "ms" would be minutes, and the limit a hundred thousand times too low."""
    assert parse_rate("limit maps", "5/ms").window_us == 1_000


@pytest.mark.parametrize(
    "text",
    [
        *["", "100", "100/", "/minute", "-1/minute", "1.5/minute", "100/fortnight", "100 minute", "0/minute", "5/0 s"],
        *["5/hs", "5/0.0001 s", "5/32 days", "2000m/day", "9" * 5_000 + "/s", "1/" + "9" * 500 + " s", None, 5],
    ],
)
def test_a_rate_that_cannot_be_read_is_named(text: object) -> None:
    """The message must name the limit."""
    with pytest.raises(BadValue, match="limit maps"):
        parse_rate("limit maps", text)


@pytest.mark.parametrize("text", ["100/minute", "1,000/day", "5 per 2.5 s", "200,000/week", "7/millisecond"])
def test_a_rate_is_shown_as_it_may_be_written(text: str) -> None:
    """Users copy rates from the dashboard back into the code."""
    assert str(parse_rate("limit maps", text)) == text


@pytest.mark.parametrize(
    ("rates", "options", "field"),
    [
        ((), {}, "limits nothing"),
        (("1/s", "2/s"), {}, "same window"),
        (("1/s", "2/m", "3/h", "4/d", "5/w"), {}, "at most 4"),
        (("1/s",), {"concurrency": 0}, "concurrency"),
        (("1/s",), {"concurrency": 1.5}, "concurrency"),
        (("1/s",), {"burst": -0.1}, "burst"),
        (("1/s",), {"burst": float("nan")}, "burst"),
        (("1/s",), {"burst": "half"}, "burst"),
        (("10/s",), {"cost_max": 11}, "cost_max"),
        (("10/s",), {"cost_max": 0}, "cost_max"),
        (("10/s",), {"lease": -1}, "lease"),
        (("10/s",), {"lease": 61}, "lease"),
        (("10/s",), {"delay": -1}, "delay"),
    ],
)
def test_an_impossible_limit_is_refused(rates: tuple[str, ...], options: dict[str, float], field: str) -> None:
    """The error must appear at the definition, not when the first call waits forever."""
    with pytest.raises(BadValue, match=field):
        Limit("maps", *rates, **options)  # type: ignore[arg-type]


def test_a_cost_is_checked_where_it_is_written() -> None:
    """A cost above cost_max could be refused forever."""
    limit = Limit("maps", "100/minute", cost_max=3)
    assert limit.cost(3).cost == 3
    for cost, message in ((0, "must be between 1 and 3"), (4, "one call takes at most 3; give the limit cost_max=4")):
        with pytest.raises(BadValue, match=f"limit maps: cost: .*{message}"):
            limit.cost(cost)


def test_rates_are_kept_in_one_order() -> None:
    """The same limit written in another order must not count as a change."""
    assert Limit("maps", "9/day", "1/s").definition == Limit("maps", "1/s", "9/day").definition


def test_short_windows_are_not_leased() -> None:
    """Taking permits a second ahead would cost a limit per second half of its rate."""
    assert permit_lease_us(Limit("maps", "3/second", "100/day").definition) == 0
    assert permit_lease_us(Limit("maps", "3 per 10 s").definition) == SECOND_US
    assert permit_lease_us(Limit("maps", concurrency=2).definition) == 0
    assert permit_lease_us(Limit("maps", "3/second", lease=0.1).definition) == SECOND_US // 10


def test_the_delay_fits_the_window() -> None:
    """The delay is half a second, but never more than a tenth of a short window."""
    definition = Limit("maps", "3 per 100 ms", "3/minute").definition
    assert [wire_delay_us(definition, rate) for rate in definition.rates] == [10_000, SECOND_US // 2]


def test_a_grant_never_outlives_lease_and_delay() -> None:
    """Half of the delay belongs to the worker and half to the network."""
    assert size_limit(Limit("maps", "3/minute", lease=2, delay=1).definition).lease_us == 2_500_000
    assert size_limit(Limit("maps", "3 per 100 ms", "3/minute").definition).lease_us == 5_000


def test_what_cannot_be_counted_exactly_is_refused() -> None:
    """Some stores calculate in doubles, so a limit that they would round must be refused."""
    with pytest.raises(BadValue, match="shorter window or a smaller burst"):
        size_limit(Limit("maps", "1000/week", burst=1.0).definition)


def test_the_fields_of_a_name_are_filled() -> None:
    """One definition must create one limit per value."""
    assert template_fields("maps:{tenant}:{region}") == ("tenant", "region")
    assert fill_template("maps:{tenant}:{region}", {"tenant": "acme", "region": 7, "more": 1}) == "maps:acme:7"
    with pytest.raises(BadValue, match="region"):
        fill_template("maps:{tenant}:{region}", {"tenant": "acme"})
    with pytest.raises(BadValue, match="printable"):
        fill_template("maps:{tenant}", {"tenant": "x" * 500})


@pytest.mark.parametrize(
    "template", ["maps:{tenant}:{region}", "{region}-{tenant}", "{tenant}/maps/{region}", "{tenant}"]
)
def test_two_tenants_never_fill_a_name_in_the_same_way(template: str) -> None:
    """Clients choose the other fields. A tenant could use up the limits and budgets of another one whose name begins or
    ends with its own name."""
    parts = ("a", "b", "a:b", "b:a", "a-b", "b-a", "a/maps/b", "a%3Ab", "a%2Db", "%", "ä:b", "3Ab")
    names: dict[str, str] = {}
    for tenant, region in product(parts, parts):
        name = fill_template(template, {"tenant": tenant, "region": region})
        assert names.setdefault(name, tenant) == tenant, (template, name)
        owners = [each for each in parts if fills_template(name, template, each)]
        assert owners == [tenant], (template, name)


def test_an_unknown_start_is_refused() -> None:
    """A misspelled start would be the default."""
    with pytest.raises(BadValue, match="empty or full"):
        Limit("maps", "100/day", start="half")


@pytest.mark.parametrize(("start", "permits"), [(None, 0), ("full", 5), ("", 0)])
async def test_tests_can_let_limits_in_memory_start_full(
    monkeypatch: pytest.MonkeyPatch, start: str | None, permits: int
) -> None:
    """A test of a job with a limit per day must not wait for its first permit, and production must."""
    if start is not None:
        monkeypatch.setenv("LEASEWAY_LIMITS_START", start)
    limiter = limiter_at("memory://")
    maps = Limit("maps", "100/day")
    await limiter.definitions.declare([maps.definition])
    assert await left(limiter, maps) == [permits]
    monkeypatch.setenv("LEASEWAY_LIMITS_START", "half")
    with pytest.raises(BadValue, match="LEASEWAY_LIMITS_START"):
        limiter_at("memory://")
