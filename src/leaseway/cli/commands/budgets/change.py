"""leaseway budgets set|pause|resume|forget"""

import sys
from collections.abc import Mapping
from typing import Any

import click
from msgspec.structs import replace

from leaseway.api.schemas.budgets import budget_settings_document
from leaseway.cli.commands.limits.definitions import pause_in_words
from leaseway.cli.open_store import change, ledger_in
from leaseway.cli.output.json import document
from leaseway.cli.output.text import say
from leaseway.cli.settings import CliSettings
from leaseway.domain.budgets.budget import Budget, BudgetDefinition, amount_text
from leaseway.domain.errors import BadValue, UsageError
from leaseway.ports.store import Store
from leaseway.worker.definitions import DefinitionChange, budget_definitions


def set_budget(settings: CliSettings, name: str, given: Mapping[str, Any]) -> None:
    named = {option: value for option, value in given.items() if value is not None}

    async def command(store: Store) -> DefinitionChange[BudgetDefinition]:
        definitions = budget_definitions(ledger_in(store, settings))
        return await definitions.change(name, lambda before: merged(name, before, named))

    before, after, version = change(settings, command)
    if settings.json:
        shown = before and budget_settings_document(before)
        document({"before": shown, "after": budget_settings_document(after), "version": version})
    elif before == after:
        say(f"budget {name}: {in_words(after)}, as before")
    else:
        say(f"budget {name}: {in_words(after)}" + (f" (was {in_words(before)})" if before else ", new"))


def merged(name: str, before: BudgetDefinition | None, named: Mapping[str, Any]) -> BudgetDefinition:
    """Options of `budgets set`; None keeps the current value."""
    if before is not None and not named:
        raise BadValue(f"budget {name}", "nothing to change; give --usd, --every or another option")
    unit, amount = parse_amount(name, before, named)
    words = {option: named[option] for option in ("every", "tz", "overdraft", "over") if option in named}
    if before is not None:
        kept = {"every": before.every.value, "tz": before.tz, "over": before.over.value}
        words = {**kept, "overdraft": amount_text(before.overdraft_micros), **words}
    definition = Budget(name, **{unit: amount}, **words).definition
    return definition if before is None else replace(definition, paused=before.paused)


def parse_amount(name: str, before: BudgetDefinition | None, named: Mapping[str, Any]) -> tuple[str, Any]:
    """The unit and the amount."""
    if "usd" in named and ("amount" in named or "unit" in named):
        raise BadValue(f"budget {name}", "give --usd, or --amount with --unit; not both")
    if "usd" in named:
        return "usd", named["usd"]
    unit = named.get("unit", before.unit if before else None)
    amount = named.get("amount", amount_text(before.limit_micros) if before else None)
    if unit is None or amount is None:
        raise BadValue(f"budget {name}", "has no amount; give --usd 25, or for example --amount 25 --unit eur")
    if unit in RESERVED:
        raise BadValue(f"budget {name}: unit", f"{unit!r} is not a unit; write a currency or a word of your own")
    return unit, amount


RESERVED = ("name", "every", "overdraft", "over", "tz")
"""Words that have another meaning for a budget."""


def in_words(definition: BudgetDefinition) -> str:
    parts = [str(definition)]
    if definition.tz != "UTC":
        parts.append(definition.tz)
    if definition.overdraft_micros:
        parts.append(f"overdraft {amount_text(definition.overdraft_micros)}")
    if not definition.waits and definition.over.value != "wait":
        parts.append("jobs that do not fit fail")
    if definition.paused:
        parts.append("paused")
    return ", ".join(parts)


def pause_budget(settings: CliSettings, name: str, is_paused: bool) -> None:
    async def command(store: Store) -> DefinitionChange[BudgetDefinition]:
        return await budget_definitions(ledger_in(store, settings)).pause(name, is_paused)

    before, after, version = change(settings, command)
    if settings.json:
        document({"name": name, "paused": is_paused, "version": version})
    else:
        say(f"budget {name}: {pause_in_words(is_paused, before != after)}")


def forget_budget(settings: CliSettings, name: str, yes: bool) -> None:
    if not yes:
        if settings.json or not sys.stdin.isatty():
            raise UsageError(f"this would remove budget {name} and its journal; not a terminal; pass --yes")
        click.confirm(f"Remove budget {name} and its journal?", abort=True, err=True)

    change(settings, lambda store: budget_definitions(ledger_in(store, settings)).forget(name))
    if settings.json:
        document({"name": name, "forgotten": True})
    else:
        say(f"budget {name}: forgotten, with its journal")
