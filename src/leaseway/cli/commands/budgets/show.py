"""leaseway budgets list|show|journal|holds|audit"""

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from leaseway.api.schemas.budgets import budget_status_document, hold_document, journal_entry_document
from leaseway.api.schemas.values import as_dict
from leaseway.cli.open_store import ask, ledger_in
from leaseway.cli.options import CliSettings
from leaseway.cli.output.console import LEVEL_STYLES, facts, heading, local, moment, note, print_json, say, wrapped
from leaseway.cli.output.table import Row, TableCell, TableColumn, show_table
from leaseway.domain.budgets.balances import Audit, BudgetWindow, HoldLine, JournalEntry, judge_ledger
from leaseway.domain.budgets.budget import CURRENCIES, MICRO, BudgetDefinition, is_template
from leaseway.domain.budgets.calendar_windows import FOR_EVER, Every
from leaseway.domain.budgets.holds import Hold, HoldState
from leaseway.domain.errors import UnknownBudget
from leaseway.domain.health import FindingLevel
from leaseway.domain.ids import Instant
from leaseway.domain.limits.templates import template_fields
from leaseway.ports.ledger import Ledger
from leaseway.ports.store import Store


def amount(micros: int, unit: str) -> str:
    """12.50, 25, 1,000,000: money has two decimal places or none, or as many as needed."""
    value = (Decimal(micros) / MICRO).normalize()
    text = f"{value:,f}"
    whole, _, places = text.partition(".")
    return f"{whole}.{places.ljust(2, '0')}" if places and unit in CURRENCIES else text


def of(micros: int, limit_micros: int, unit: str) -> str:
    """12.50 of 25 usd"""
    return f"{amount(micros, unit)} of {amount(limit_micros, unit)} {unit}"


COLUMNS = (
    TableColumn("name"),
    TableColumn("spent"),
    TableColumn("held", right=True),
    TableColumn("left", right=True),
    TableColumn("window"),
    TableColumn("next begins", may_shrink=True),
    TableColumn("booked ahead", right=True),
)
WINDOWS = (
    TableColumn("name"),
    TableColumn("window"),
    TableColumn("spent"),
    TableColumn("held", right=True),
    TableColumn("left", right=True),
    TableColumn("overdraft", right=True),
    TableColumn("crossed", right=True),
    TableColumn("begins", may_shrink=True),
)
JOURNAL = (
    TableColumn("at"),
    TableColumn("kind"),
    TableColumn("held", right=True),
    TableColumn("spent", right=True),
    TableColumn("window"),
    TableColumn("crossed", right=True),
    TableColumn("hold", may_shrink=True),
    TableColumn("by", may_shrink=True),
)
HOLDS = (
    TableColumn("hold"),
    TableColumn("state"),
    TableColumn("held", right=True),
    TableColumn("window"),
    TableColumn("deadline", may_shrink=True),
)
STYLES = {50: "", 80: "yellow", 100: "red"}
SICK = 1


class BudgetBalances(NamedTuple):
    definitions: list[tuple[BudgetDefinition, int]]
    accounts: list[BudgetWindow]
    now: Instant

    def of(self, definition: BudgetDefinition) -> list[BudgetWindow]:
        return [account for account in self.accounts if account.budget == definition.name]


def list_budgets(settings: CliSettings) -> None:
    books = ask(settings, lambda store: read_books(ledger_in(store, settings), store))
    if settings.json:
        print_json({"budgets": [budget_status_document(*each, books.of(each[0])) for each in books.definitions]})
    elif not books.definitions:
        note("there are no budgets yet: a worker declares those of its app when it starts; or: leaseway budgets set")
    else:
        show_table(COLUMNS, [row for definition, _ in books.definitions for row in budget_rows(definition, books)])


async def read_books(ledger: Ledger, store: Store) -> BudgetBalances:
    return BudgetBalances(await ledger.definitions.all(), await ledger.reads.balances(), await store.reads.now())


def budget_rows(definition: BudgetDefinition, books: BudgetBalances) -> list[Row]:
    """One row per name with a current window; a budget template that is not used yet has one row of its own."""
    accounts = books.of(definition)
    rows = [balance_row(account, accounts, books.now) for account in accounts if account.has_begun]
    if definition.paused:
        rows = [(*row[:4], TableCell(f"{row[4]}, paused", "yellow"), *row[5:]) for row in rows]
    if rows:
        return rows
    each = f"one for each {' and '.join(template_fields(definition.name))}" if is_template(definition.name) else ""
    unused = of(0, definition.limit_micros, definition.unit)
    return [(definition.name, unused, "", "", TableCell(each, "dim"), "", "")]


def balance_row(account: BudgetWindow, accounts: Sequence[BudgetWindow], now: Instant) -> Row:
    book, unit = account.balance, account.unit
    ahead = sum(other.booked_ahead_micros for other in accounts if other.name == account.name)
    return (
        account.name,
        TableCell(of(book.spent_micros, book.limit_micros, unit), STYLES.get(book.threshold_percent, "")),
        amount(book.held_micros, unit),
        amount(account.left_micros, unit),
        account.window.label,
        moment(account.window.end, now) if account.window.end < FOR_EVER else TableCell("never", "dim"),
        amount(ahead, unit) if ahead else "",
    )


# -- one budget -----------------------------------------------------------------------------------------------------


def show_budget(settings: CliSettings, name: str) -> None:
    books = ask(settings, lambda store: read_books(ledger_in(store, settings), store))
    definition, version = definition_named(name, books)
    accounts = [account for account in books.of(definition) if name in (account.name, definition.name)]
    if settings.json:
        print_json({**as_dict(budget_status_document(definition, version, accounts)), "name": name})
        return
    say(f"budget {name}  {definition}", "bold")
    say()
    facts(record(definition))
    if accounts:
        heading("windows")
        show_table(WINDOWS, [window_row(account, books.now) for account in accounts])
    elif is_template(name):
        note(f"there is one for each {' and '.join(template_fields(name))}, and none is in use yet")


def definition_named(name: str, books: BudgetBalances) -> tuple[BudgetDefinition, int]:
    """The definition of this name, or the template that a budget of this name was made from."""
    kept_by = {account.name: account.budget for account in books.accounts}
    for definition, version in books.definitions:
        if definition.name in (name, kept_by.get(name)):
            return definition, version
    raise unknown_budget(name, [definition.name for definition, _ in books.definitions])


def unknown_budget(name: str, known: Sequence[str]) -> UnknownBudget:
    return UnknownBudget(f"there is no budget {name!r}; defined are: {', '.join(known) or 'none'}")


def record(definition: BudgetDefinition) -> list[tuple[str, str]]:
    is_total = definition.every is Every.TOTAL
    over = "it waits for a later window with enough left" if definition.waits else "it fails"
    overdraft = definition.overdraft_micros
    return [
        ("limit", f"{amount(definition.limit_micros, definition.unit)} {definition.unit}"),
        ("every", definition.every.value if not is_total else "in total, without windows"),
        ("time zone", "" if is_total else definition.tz),
        (
            "overdraft",
            f"holds may exceed the amount by {amount(overdraft, definition.unit)} {definition.unit}"
            if overdraft
            else "",
        ),
        ("if a job does not fit", over),
    ]


def window_row(account: BudgetWindow, now: Instant) -> Row:
    book, unit = account.balance, account.unit
    return (
        account.name,
        account.window.label,
        of(book.spent_micros, book.limit_micros, unit),
        amount(book.held_micros, unit) + ("" if account.has_begun else " booked ahead"),
        amount(account.left_micros, unit),
        amount(book.overdraft_micros, unit) if book.overdraft_micros else "",
        TableCell(f"{book.threshold_percent} %", STYLES.get(book.threshold_percent, ""))
        if book.threshold_percent
        else "",
        TableCell("current", "green") if account.has_begun else moment(account.window.start, now),
    )


# -- the journal ----------------------------------------------------------------------------------------------------


def show_journal(settings: CliSettings, name: str, limit: int) -> None:
    async def question(store: Store) -> tuple[list[JournalEntry], BudgetBalances]:
        ledger = ledger_in(store, settings)
        return await ledger.reads.journal(name, limit), await read_books(ledger, store)

    entries, books = ask(settings, question)
    if settings.json:
        print_json({"name": name, "entries": [journal_entry_document(entry) for entry in entries]})
        return
    if not entries:
        definition_named(name, books)  # raises an error if there is no such budget
        note(f"budget {name} has no journal entries yet")
    else:
        unit = next((account.unit for account in books.accounts if account.name == name), "")
        show_table(JOURNAL, [journal_row(entry, unit) for entry in entries])


def journal_row(entry: JournalEntry, unit: str) -> Row:
    return (
        local(entry.at),
        entry.kind,
        signed(entry.held_micros, unit),
        signed(entry.spent_micros, unit),
        entry.window.label,
        f"{entry.crossed} %" if entry.crossed else "",
        entry.hold,
        evidence_text(entry, unit),
    )


def evidence_text(entry: JournalEntry, unit: str) -> str:
    """alice: 0.005 to 0.004, invoice 7"""
    if entry.by is None or entry.from_micros is None:
        return ""
    amounts = f"{amount(entry.from_micros, unit)} to {amount(entry.from_micros + entry.spent_micros, unit)}"
    return f"{entry.by}: {amounts}" + (f", {entry.reason}" if entry.reason else "")


def signed(micros: int, unit: str) -> str:
    return f"+{amount(micros, unit)}" if micros > 0 else amount(micros, unit) if micros else ""


# -- holds ----------------------------------------------------------------------------------------------------------


def show_holds(settings: CliSettings, name: str, limit: int) -> None:
    async def question(store: Store) -> tuple[list[Hold], BudgetBalances]:
        ledger = ledger_in(store, settings)
        return await ledger.reads.holds(name, limit), await read_books(ledger, store)

    holds, books = ask(settings, question)
    if settings.json:
        print_json({"name": name, "holds": [hold_document(hold) for hold in holds]})
        return
    if not holds:
        definition_named(name, books)  # raises an error if there is no such budget
        note(f"budget {name} has no open and no captured holds")
        return
    show_table(HOLDS, [hold_row(hold, line, books.now) for hold in holds for line in hold.lines if line.name == name])


def hold_row(hold: Hold, line: HoldLine, now: Instant) -> Row:
    is_captured = hold.state is HoldState.CAPTURED
    return (
        hold.id,
        TableCell(hold.state.value, "yellow" if is_captured else ""),
        f"{amount(line.amount_micros, line.unit)} {line.unit}",
        line.window.label,
        moment(hold.deadline, now),
    )


def audit_budgets(settings: CliSettings) -> int:
    async def question(store: Store) -> Audit:
        return await ledger_in(store, settings).reads.audit()

    finding = judge_ledger(ask(settings, question))
    is_sick = finding.level is FindingLevel.PROBLEM
    if settings.json:
        print_json({"agrees": not is_sick, "text": finding.text, "advice": finding.advice})
    else:
        say(wrapped(finding.text), LEVEL_STYLES[finding.level])
        if finding.advice:
            say(wrapped(finding.advice), "dim")
    return SICK if is_sick else 0
