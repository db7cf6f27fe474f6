"""leaseway budgets set|rebook|settle|pause|resume|forget"""

import getpass
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from leaseway.api.schemas.budgets import HoldSettledDocument, budget_settings_document, hold_settled_document
from leaseway.cli.commands.limits.definitions import pause_in_words
from leaseway.cli.open_store import change, ledger_in
from leaseway.cli.options import CliSettings
from leaseway.cli.output.console import confirm, counted, print_json, say
from leaseway.domain.budgets.balances import Evidence
from leaseway.domain.budgets.budget import Budget, BudgetDefinition, amount_text, parse_amount_micros
from leaseway.domain.errors import BadValue, UsageError
from leaseway.ports.store import Store
from leaseway.worker.definitions import DefinitionChange, budget_definitions, correct_hold, rebook
from leaseway.worker.definitions import forget_budget as remove


def set_budget(settings: CliSettings, name: str, given: Mapping[str, Any]) -> None:
    named = {option: value for option, value in given.items() if value is not None}

    async def command(store: Store) -> tuple[DefinitionChange[BudgetDefinition], int]:
        ledger = ledger_in(store, settings)
        changed = await budget_definitions(ledger, store.operations).change(
            name, lambda before: merged(name, before, named)
        )
        return changed, await rebook(store, ledger, name)

    (before, after, version), count = change(settings, command)
    if settings.json:
        shown = {"before": before and budget_settings_document(before), "after": budget_settings_document(after)}
        print_json({**shown, "version": version, "brought_forward": count})
        return
    if before == after:
        say(f"budget {name}: {in_words(after)}, as before")
    else:
        say(f"budget {name}: {in_words(after)}" + (f" (was {in_words(before)})" if before else ", new"))
    say_brought_forward(count)


def say_brought_forward(count: int) -> None:
    if count:
        say(f"brought forward {counted(count, 'job')} that waited for a later window")


def rebook_budget(settings: CliSettings, name: str) -> None:
    async def command(store: Store) -> int:
        ledger = ledger_in(store, settings)
        if not any(name in (window.name, window.budget) for window in await ledger.reads.balances()):
            await budget_definitions(ledger, store.operations).find(name)  # an error if there is no such budget
        return await rebook(store, ledger, name)

    count = change(settings, command)
    if settings.json:
        print_json({"name": name, "brought_forward": count})
    else:
        say(f"budget {name}: brought forward {counted(count, 'job')}")


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


def settle_holds(settings: CliSettings, holds: Sequence[str], given: Mapping[str, Any]) -> None:
    actuals = parse_actual(given)
    evidence = Evidence(given["by"] or user_name(), given["reason"])

    async def command(store: Store) -> list[HoldSettledDocument]:
        ledger = ledger_in(store, settings)
        settled = dict.fromkeys(holds)
        return [
            hold_settled_document(each, evidence, await correct_hold(store, ledger, each, actuals, evidence))
            for each in settled
        ]

    settled = change(settings, command)
    if settings.json:
        print_json({"settled": settled})
        return
    for each in settled:
        for line in each.corrections:
            say(f"hold {each.hold}: {line.name} {line.window}: {line.after} {line.unit} (was {line.before})")


def parse_actual(given: Mapping[str, Any]) -> dict[str, int]:
    """The cost of each call, by unit."""
    usd, amount, unit = given["usd"], given["amount"], given["unit"]
    if (usd is None) == (amount is None) or (amount is None) != (unit is None):
        raise BadValue("amount", "give --usd 0.004, or for example --amount 1200 --unit tokens")
    if usd is not None:
        return {"usd": parse_amount_micros("--usd", usd, zero=True)}
    return {unit: parse_amount_micros("--amount", amount, zero=True)}


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # a container may have no user database
        raise BadValue("by", "this process has no user name; give --by NAME") from error


def pause_budget(settings: CliSettings, name: str, is_paused: bool) -> None:
    async def command(store: Store) -> tuple[DefinitionChange[BudgetDefinition], int]:
        ledger = ledger_in(store, settings)
        changed = await budget_definitions(ledger, store.operations).pause(name, is_paused)
        return changed, 0 if is_paused else await rebook(store, ledger, name)

    (before, after, version), count = change(settings, command)
    if settings.json:
        print_json({"name": name, "paused": is_paused, "version": version, "brought_forward": count})
        return
    say(f"budget {name}: {pause_in_words(is_paused, before != after)}")
    say_brought_forward(count)


def forget_budget(settings: CliSettings, name: str, yes: bool) -> None:
    if not yes:
        if settings.json or not sys.stdin.isatty():
            raise UsageError(f"this would remove budget {name} and its journal; not a terminal; pass --yes")
        confirm(f"Remove budget {name} and its journal?")

    count = change(settings, lambda store: remove(store, ledger_in(store, settings), name))
    if settings.json:
        print_json({"name": name, "forgotten": True, "brought_forward": count})
        return
    say(f"budget {name}: forgotten, with its journal")
    say_brought_forward(count)
