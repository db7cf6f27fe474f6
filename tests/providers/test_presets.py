"""Presets of providers: what they know is what the code reads, and what they do not know they ask for."""

import datetime
from typing import Any

import pytest

from leaseway import BadValue, Usage, UsageError, providers
from leaseway.domain.limits.rate_limit_headers import parse_rate_limits
from leaseway.domain.limits.token_usage import parse_usage
from leaseway.providers.presets import ProviderFile, read_file

ASKED = {
    "openai": {"model": "gpt-5-mini", "requests": "500/minute", "tokens": "200k/minute"},
    "anthropic": {"model": "claude-fable-5", "tier": "start"},
    "gemini": {"model": "gemini-2.5-flash", "requests": "1000/minute", "input_tokens": "1M/minute"},
    "github": {"tier": "user"},
    "stripe": {"tier": "live"},
    "open-charge-map": {"requests": "1/second"},
}
"""What each provider needs to be told."""


def load(name: str, **options: Any) -> providers.Preset:
    return providers.load(name, **{**ASKED[name], **options})


def test_every_provider_of_the_issue_has_a_preset() -> None:
    """A file that is not packaged would be missed only by users."""
    assert providers.names() == sorted(ASKED)


@pytest.mark.parametrize("name", ASKED)
def test_a_preset_makes_the_limits_of_its_file(name: str) -> None:
    """Every limit of the provider must be there: calls would exceed one that is left out."""
    preset = load(name)
    assert list(preset.limits) == list(preset.file.limits)
    for what, limit in preset.limits.items():
        assert limit.definition.unit == preset.file.limits[what].unit
        assert limit.name.startswith(name)
        assert limit.definition.rates or limit.definition.concurrency


@pytest.mark.parametrize("name", ASKED)
def test_what_may_change_has_a_source_and_a_date(name: str) -> None:
    """A number without them cannot be checked, and nobody knows when it is old."""
    file = read_file(name)
    dated = [(each.as_of, each.source) for each in file.tiers]
    if file.prices is not None:
        dated.append((file.prices.as_of, file.prices.source))
    for as_of, source in dated:
        assert as_of > datetime.date(2026, 1, 1)
        assert "https://" in source
    assert file.docs.startswith("https://")
    assert file.where.startswith("https://")


@pytest.mark.parametrize("name", [name for name in ASKED if read_file(name).headers])
def test_its_headers_are_read_for_the_unit_of_the_limit(name: str) -> None:
    """A preset that names another header than the code reads would document a lie."""
    file = read_file(name)
    for what, header in file.headers.items():
        quota = parse_rate_limits(200, [(header, "3")]).quota(file.limits[what].unit)
        assert quota is not None, header
        assert quota.remaining == 3


USAGES: dict[str, dict[str, Any]] = {
    "openai": {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
    "anthropic": {
        "input_tokens": 6, "output_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0
    },
    "gemini": {
        "promptTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "cachedContentTokenCount": 4
    },
}  # fmt: skip


@pytest.mark.parametrize("name", USAGES)
def test_its_fields_of_usage_are_those_that_are_read(name: str) -> None:
    """The documentation of a preset must name the fields that decide about money."""
    usage, fields = parse_usage(USAGES[name], ""), " ".join(read_file(name).usage.values())
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (6, 5, 4)
    for field, value in USAGES[name].items():
        assert field in fields
        assert not isinstance(value, dict) or all(inner in fields for inner in value)


# -- what it does not know --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("openai", {"model": None}, ["model", "pass model="]),
        ("openai", {"tokens": ()}, ["tokens", "gpt-5-mini", "settings/organization/limits", '"200k/minute"']),
        ("openai", {"tier": "5"}, ["tier", "publishes no limits by tier"]),
        ("anthropic", {"tier": None}, ["requests", "claude-fable-5", "tier= as one of scale, start"]),
        ("anthropic", {"model": "claude-sonnet-5"}, ["requests", "claude-sonnet-5", "in the tier start"]),
        ("stripe", {"tier": "test"}, ["tier", "live, sandbox"]),
        ("open-charge-map", {"requests": ()}, ["requests", "https://openchargemap.org"]),
        ("stripe", {"tokens": "5/minute"}, ["tokens", "requests, endpoint"]),
        ("stripe", {"requests": "many"}, ["cannot read the rate 'many'"]),
        ("stripe", {"cost_max": {"tokens": 3}}, ["tokens", "is not a limit of stripe"]),
    ],
)
def test_what_it_does_not_know_it_asks_for(name: str, changes: dict[str, Any], expected: list[str]) -> None:
    """A guessed limit means refusals, or a fleet that is slow without anybody knowing why."""
    with pytest.raises(BadValue) as refused:
        load(name, **changes)
    for text in expected:
        assert text in str(refused.value)


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    """A typing error must not look like a provider without limits."""
    with pytest.raises(BadValue, match="no preset is named 'opnai'; choose one of: anthropic, gemini"):
        providers.load("opnai")


def test_a_limit_that_it_does_not_have_is_refused() -> None:
    """A job that goes on without the limit on tokens would be refused by the provider."""
    with pytest.raises(UsageError, match="github has no limit 'tokens'; it has: requests, concurrency"):
        load("github").limit("tokens")


# -- names and prices -------------------------------------------------------------------------------------------------


def test_models_that_share_limits_share_their_names() -> None:
    """Two limits of 1,000 per minute for one quota would let twice of it through."""
    one, other = load("anthropic"), load("anthropic", model="claude-fable-5-2")
    assert one.limit("requests").definition == other.limit("requests").definition
    assert load("openai").limit().name != load("openai", model="gpt-5").limit().name
    assert load("stripe", account="eu").limit().name == "stripe-eu-requests"


def test_rates_of_the_account_take_the_place_of_published_ones() -> None:
    """Providers raise the limits of single accounts."""
    preset = load("stripe", requests=["500/second", "1M/day"], cost_max={"endpoint": 2}, breaker=4)
    assert [str(rate) for rate in preset.limit().definition.rates] == ["500/second", "1,000,000/day"]
    endpoint = preset.limit("endpoint").definition
    assert (str(endpoint.rates[0]), endpoint.cost_max, endpoint.breaker) == ("25/second", 2, 4)


def test_a_call_costs_what_the_table_says() -> None:
    """A factor of a thousand would be noticed on the bill only."""
    million = Usage(1_000_000, 1_000_000, 1_000_000, 1_000_000)
    assert load("anthropic").cost(million) == 10 + 50 + 1 + 20
    assert load("openai").cost(million) == 0.25 + 2 + 0.025 + 0.25  # it has no price of its own for cache writes
    own = providers.Prices(input=3, output=7)
    assert load("openai", prices=own).cost(million) == 3 + 7 + 3 + 3


@pytest.mark.parametrize("name", [name for name in ASKED if read_file(name).prices])
def test_prices_are_plausible(name: str) -> None:
    """A dot in the wrong place: no flat price is above 200 dollars, and reading from a cache is never dearer."""
    prices: ProviderFile = read_file(name)
    assert prices.prices is not None
    for model, each in prices.prices.models.items():
        assert 0 < each.input <= 50, model
        assert each.output == 0 or each.input <= each.output <= 200, model
        assert each.cache_read is None or 0 < each.cache_read <= each.input, model
        assert each.cache_write is None or each.cache_write >= each.input, model


def test_an_unknown_price_is_an_error_and_not_zero() -> None:
    """A budget would let everything through."""
    preset = load("openai", model="gpt-7")
    with pytest.raises(UsageError) as refused:
        preset.cost(Usage(1, 1, model="gpt-7"))
    for text in ("the prices of gpt-7 are not known", "gpt-5-mini", "as of 2026-11-19", "prices=providers.Prices("):
        assert text in str(refused.value)
    with pytest.raises(UsageError, match="github: the prices of this model are not known; pass"):
        load("github").cost(Usage())
