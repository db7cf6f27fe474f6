"""data file ─► [model, tier, rates of the account] ─► limits and the cost of a call"""

import datetime
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct

from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.limits.limit import REQUESTS, Limit
from leaseway.domain.limits.token_usage import Usage

SUFFIX = ".toml"
MILLION = 1_000_000
SHOWN_MAX = 12
Rates = str | Sequence[str]


class Prices(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars per million tokens. Input that is read from or written to a cache of the provider costs as much as
    other input, unless it is said."""

    input: float
    output: float = 0.0
    cache_read: float | None = None
    cache_write: float | None = None

    def cost(self, usage: Usage) -> float:
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        micros = usage.input_tokens * self.input + usage.output_tokens * self.output
        return (micros + usage.cache_read_tokens * read + usage.cache_write_tokens * write) / MILLION


class PresetLimit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`example`: how a rate reads, for error messages. `concurrency`: the same for every account."""

    unit: str = REQUESTS
    example: str = ""
    concurrency: int | None = None


class Tier(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates that the provider publishes."""

    name: str
    as_of: datetime.date
    source: str
    rates: Mapping[str, Sequence[str]]
    models: Sequence[str] = ()
    """Empty: they hold for all models, or the provider has none."""
    family: str = ""
    """Models that share these limits."""


class PriceTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    as_of: datetime.date
    source: str
    models: Mapping[str, Prices]


class ProviderFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    docs: str
    where: str
    """Where an account finds its own limits."""
    per_model: bool = False
    """Each model has limits of its own."""
    notes: Sequence[str] = ()
    limits: Mapping[str, PresetLimit]
    tiers: Sequence[Tier] = ()
    headers: Mapping[str, str] = {}
    """By unit: the header that says how much is left."""
    usage: Mapping[str, str] = {}
    """By the field of `leaseway.Usage`: where a reply has it."""
    prices: PriceTable | None = None


class Preset:
    """A provider as one account uses it."""

    def __init__(self, name: str, file: ProviderFile, limits: Mapping[str, Limit], prices: Prices | None) -> None:
        self.name = name
        self.file = file
        self.limits = limits
        """By what they limit: requests, tokens, …"""
        self._prices = prices

    def limit(self, what: str = REQUESTS) -> Limit:
        found = self.limits.get(what)
        if found is None:
            raise UsageError(f"{self.name} has no limit {what!r}; it has: {', '.join(self.limits)}")
        return found

    def cost(self, usage: Usage) -> float:
        """The US dollars of a call, for `leaseway_client(ctx, cost=preset.cost)`."""
        if self._prices is None:
            raise no_prices(self.name, self.file, usage.model)
        return self._prices.cost(usage)

    def __repr__(self) -> str:
        return f"Preset({self.name!r}, {', '.join(map(repr, self.limits.values()))})"


def names() -> list[str]:
    """The providers that there is a preset for."""
    found = (each.name for each in files(__package__).iterdir())
    return sorted(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX))


@cache
def read_file(name: str) -> ProviderFile:
    if name not in names():
        raise BadValue("provider", f"no preset is named {name!r}; choose one of: {', '.join(names())}")
    text = (files(__package__) / f"{name}{SUFFIX}").read_text("utf-8")
    return msgspec.toml.decode(text, type=ProviderFile)


def load(
    name: str,
    *,
    model: str | None = None,
    tier: str | None = None,
    prices: Prices | None = None,
    account: str = "",
    cost_max: Mapping[str, int] | None = None,
    breaker: int | None = None,
    **rates: Rates,
) -> Preset:
    """The preset of a provider.

    `rates`: what your account states, by limit: `requests="500/minute", tokens="200k/minute"`. They take the place of
    published ones. `tier`: for providers that publish their limits by tier. `account`: a part of the names of the
    limits, if you have several accounts. `cost_max`: the highest use of one call, by limit. `breaker`: see `Limit`.
    """
    file = read_file(name)
    if file.per_model and model is None:
        raise BadValue("model", f"{file.title} has limits and prices by model; pass model= as you name it in a call")
    refuse_unknown_rates(name, file, {*rates, *(cost_max or {})})
    published = published_rates(name, file, model, tier)
    stem = "-".join(filter(None, (name, account, family(file, model))))
    limits = {}
    for what, shape in file.limits.items():
        given = rates.get(what, published.get(what, ()))
        if not given and shape.concurrency is None:
            raise missing_rate(file, what, shape, model, tier)
        limits[what] = Limit(
            f"{stem}-{what.replace('_', '-')}",
            *((given,) if isinstance(given, str) else given),
            unit=shape.unit,
            concurrency=shape.concurrency,
            cost_max=(cost_max or {}).get(what),
            breaker=breaker,
        )
    return Preset(name, file, limits, prices or table_prices(file, model))


def family(file: ProviderFile, model: str | None) -> str | None:
    """What has limits of its own: a model, or a family of models that share them."""
    if not file.per_model:
        return None
    return next((each.family for each in file.tiers if each.family and model in each.models), model)


def refuse_unknown_rates(name: str, file: ProviderFile, given: set[str]) -> None:
    for what in sorted(given - file.limits.keys()):
        raise BadValue(what, f"is not a limit of {name}; its limits: {', '.join(file.limits)}")


def published_rates(name: str, file: ProviderFile, model: str | None, tier: str | None) -> Mapping[str, Sequence[str]]:
    if tier is None:
        return {}
    known = [each.name for each in file.tiers]
    if tier not in known:
        tiers = f"its tiers: {', '.join(dict.fromkeys(known))}" if known else "it publishes no limits by tier"
        raise BadValue(
            "tier", f"{name} has no tier {tier!r}; {tiers}; or pass the rates of your account ({file.where})"
        )
    fits = (each.rates for each in file.tiers if each.name == tier and (not each.models or model in each.models))
    return next(fits, {})


def missing_rate(file: ProviderFile, what: str, shape: PresetLimit, model: str | None, tier: str | None) -> BadValue:
    of_model = "" if model is None else f" for {model}"
    of_tier = "" if tier is None else f" in the tier {tier}"
    tiers = sorted({each.name for each in file.tiers if not each.models or model in each.models})
    choice = f", or tier= as one of {', '.join(tiers)}" if tiers and tier is None else ""
    return BadValue(
        what,
        f"{file.title}: it is not known{of_model}{of_tier}; look it up at {file.where} and pass "
        f'{what}="{shape.example}"{choice}',
    )


def table_prices(file: ProviderFile, model: str | None) -> Prices | None:
    return None if file.prices is None or model is None else file.prices.models.get(model)


def no_prices(name: str, file: ProviderFile, model: str) -> UsageError:
    table = file.prices
    known = f"; known are {', '.join(list(table.models)[:SHOWN_MAX])} (as of {table.as_of})" if table else ""
    return UsageError(
        f"{name}: the prices of {model or 'this model'} are not known{known}; pass "
        f"prices=providers.Prices(input=…, output=…) in US dollars per million tokens; {file.docs}"
    )
