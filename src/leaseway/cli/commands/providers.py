"""leaseway providers [list|show]"""

from typing import Any

import click
import msgspec

from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.options import CliSettings, everywhere, pass_settings
from leaseway.cli.output.console import facts, heading, print_json, say
from leaseway.cli.output.table import TableColumn, show_table
from leaseway.providers.presets import PriceTable, ProviderFile, names, read_file

COLUMNS = (
    TableColumn("name"),
    TableColumn("provider", may_shrink=True),
    TableColumn("limits", may_shrink=True),
    TableColumn("tiers", may_shrink=True),
    TableColumn("prices of"),
)


@click.group("providers", cls=InOrder, invoke_without_command=True)
@everywhere
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: CliSettings) -> None:
    """Presets of providers: list, show. Without a subcommand: list."""
    if ctx.invoked_subcommand is None:
        list_providers(settings)


@command.command("list")
@everywhere
@pass_settings
def list_(settings: CliSettings) -> None:
    """List the providers that there is a preset for."""
    list_providers(settings)


def list_providers(settings: CliSettings) -> None:
    files = {name: read_file(name) for name in names()}
    if settings.json:
        print_json({"providers": [document(name, file) for name, file in files.items()]})
        return
    rows = [
        (name, file.title, ", ".join(file.limits), ", ".join(tier_names(file)) or "-",
         "-" if file.prices is None else str(file.prices.as_of))
        for name, file in files.items()
    ]  # fmt: skip
    show_table(COLUMNS, rows)


@command.command("show")
@click.argument("name")
@everywhere
@pass_settings
def show(settings: CliSettings, name: str) -> None:
    """Show what a preset knows, from where and as of when, and what it asks for."""
    file = read_file(name)
    if settings.json:
        return print_json(document(name, file))
    say(f"{name}  {file.title}", "bold")
    facts([("documentation", file.docs), ("your limits", file.where)])
    for note in file.notes:
        say(f"- {note}")
    heading("limits")
    facts([(what, limit_in_words(file, what)) for what in file.limits])
    for tier in file.tiers:
        heading(f"tier {tier.name}" + (f": {', '.join(tier.models)}" if tier.models else ""))
        facts([(what, ", ".join(rates)) for what, rates in tier.rates.items()])
        facts([("as of", f"{tier.as_of}, {tier.source}")])
    for title, names_ in (("headers that say what is left", file.headers), ("usage in a reply", file.usage)):
        if names_:
            heading(title)
            facts(list(names_.items()))
    if file.prices is not None:
        show_prices(file.prices)


def show_prices(prices: PriceTable) -> None:
    heading("prices in US dollars per million tokens")
    facts([("as of", f"{prices.as_of}, {prices.source}")])
    columns = [TableColumn("model"), *(TableColumn(name, right=True) for name in PRICE_FIELDS)]
    show_table(
        columns, [(model, *map(price, PRICE_FIELDS.values(), [each] * 4)) for model, each in prices.models.items()]
    )


PRICE_FIELDS = {"input": "input", "cache read": "cache_read", "cache write": "cache_write", "output": "output"}


def price(field: str, prices: Any) -> str:
    value = getattr(prices, field)
    return "" if not value else f"{value:g}"


def limit_in_words(file: ProviderFile, what: str) -> str:
    shape = file.limits[what]
    if shape.concurrency is not None:
        return f"{shape.concurrency:,} at once"
    tiers = " or a tier" if any(what in each.rates for each in file.tiers) else ""
    return f'{shape.unit}; pass {what}="{shape.example}"{tiers}'


def tier_names(file: ProviderFile) -> list[str]:
    return list(dict.fromkeys(each.name for each in file.tiers))


def document(name: str, file: ProviderFile) -> dict[str, Any]:
    return {"name": name, **msgspec.to_builtins(file)}
