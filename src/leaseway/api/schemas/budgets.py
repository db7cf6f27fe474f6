"""Budgets: their definitions, windows and journal."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from leaseway.api.schemas.values import Amount, Document, Timestamp, extend, timestamp
from leaseway.domain.budgets.balances import BudgetWindow, Evidence, JournalEntry
from leaseway.domain.budgets.budget import BudgetDefinition, OverPolicy, amount_text
from leaseway.domain.budgets.calendar_windows import FOR_EVER, Every
from leaseway.domain.budgets.holds import Correction, Hold, HoldState
from leaseway.domain.ids import Instant


class BurnDocument(Document, kw_only=True):
    """How fast the budget of a window is spent, measured from the start of the window."""

    passed_percent: float
    spent_percent: float
    held_percent: float
    lasts_until: Timestamp | None
    """When the budget is used up at this pace; null: not before the end of the window."""


class BudgetWindowDocument(Document, kw_only=True):
    name: str
    window: str
    start: Timestamp | None
    end: Timestamp | None
    has_begun: bool
    limit: Amount
    spent: Amount
    held: Amount
    left: Amount
    overdraft: Amount
    threshold_percent: int
    burn: BurnDocument | UnsetType | None = UNSET
    """null: the window has not started, or never ends."""
    unit: str | UnsetType = UNSET


class BudgetDefinitionDocument(Document, kw_only=True):
    """The body of PUT /v1/budgets/{name}."""

    unit: str
    limit: Amount
    every: Every
    tz: str
    overdraft: Amount
    over: OverPolicy


class BudgetChangedDocument(Document, kw_only=True):
    name: str
    version: int
    paused: bool
    definition: BudgetDefinitionDocument
    brought_forward: int
    """How many jobs waited for a later window and are ready now, because an earlier one has room."""


class BudgetRebookedDocument(Document, kw_only=True):
    name: str
    brought_forward: int


class BudgetSettingsDocument(Document, kw_only=True):
    name: str
    unit: str
    limit: Amount
    every: Every
    tz: str
    overdraft: Amount
    over: OverPolicy
    paused: bool
    """A paused budget grants no holds until it is resumed."""


class BudgetStatusDocument(BudgetSettingsDocument, kw_only=True):
    version: int
    windows: list[BudgetWindowDocument]


class BudgetDocument(BudgetStatusDocument, kw_only=True):
    """A budget with its current and future windows."""

    budget: str | UnsetType = UNSET
    """The definition that applies to this name; only where one budget was requested."""
    definition: BudgetDefinitionDocument


class JournalEntryDocument(Document, kw_only=True):
    """One entry of a budget's journal."""

    seq: int
    at: Timestamp | None
    kind: str
    hold: str
    name: str
    window: str
    held: Amount
    spent: Amount
    threshold_percent: int | None
    by: str | None
    """Who corrected a captured amount; null: the entry is no correction by an operator."""
    reason: str | None
    before: Amount | None
    """What was charged before an operator's correction."""


class HoldLineDocument(Document, kw_only=True):
    name: str
    unit: str
    window: str
    held: Amount
    charged: Amount | None
    """The amount with which it was captured; null: the hold is open."""


class HoldDocument(Document, kw_only=True):
    """A hold whose actual cost is not known."""

    hold: str
    state: HoldState
    deadline: Timestamp | None
    """When an open hold is captured, if its call was dispatched, or freed, if not; when a captured one was due."""
    lines: list[HoldLineDocument]


class CorrectionDocument(Document, kw_only=True):
    name: str
    unit: str
    window: str
    before: Amount
    after: Amount


class HoldSettledDocument(Document, kw_only=True):
    hold: str
    by: str
    reason: str
    corrections: list[CorrectionDocument]


def budget_definition_document(definition: BudgetDefinition) -> BudgetDefinitionDocument:
    return BudgetDefinitionDocument(
        unit=definition.unit,
        limit=amount_text(definition.limit_micros),
        every=definition.every,
        tz=definition.tz,
        overdraft=amount_text(definition.overdraft_micros),
        over=definition.over,
    )


def budget_settings_document(definition: BudgetDefinition) -> BudgetSettingsDocument:
    return extend(
        BudgetSettingsDocument, budget_definition_document(definition), name=definition.name, paused=definition.paused
    )


def budget_status_document(
    definition: BudgetDefinition, version: int, accounts: Sequence[BudgetWindow]
) -> BudgetStatusDocument:
    windows = [budget_window_document(account) for account in accounts]
    return extend(BudgetStatusDocument, budget_settings_document(definition), version=version, windows=windows)


def budget_document(
    definition: BudgetDefinition, version: int, accounts: Sequence[BudgetWindow], now: Instant
) -> BudgetDocument:
    status = budget_status_document(definition, version, ())
    status.windows = [burning_window_document(account, now) for account in accounts]
    return extend(BudgetDocument, status, definition=budget_definition_document(definition))


def accounts_for(definition: BudgetDefinition, accounts: Sequence[BudgetWindow]) -> list[BudgetWindow]:
    return [account for account in accounts if account.budget == definition.name]


def budget_window_document(account: BudgetWindow) -> BudgetWindowDocument:
    book, window = account.balance, account.window
    return BudgetWindowDocument(
        name=account.name,
        window=window.label,
        start=timestamp(window.start),
        end=timestamp(window.end),
        has_begun=account.has_begun,
        limit=amount_text(book.limit_micros),
        spent=amount_text(book.spent_micros),
        held=amount_text(book.held_micros),
        left=amount_text(account.left_micros),
        overdraft=amount_text(book.overdraft_micros),
        threshold_percent=book.threshold_percent,
    )


def burning_window_document(account: BudgetWindow, now: Instant, unit: str | UnsetType = UNSET) -> BudgetWindowDocument:
    return replace(budget_window_document(account), burn=burn_document(account, now), unit=unit)


def burn_document(account: BudgetWindow, now: Instant) -> BurnDocument | None:
    window, book = account.window, account.balance
    passed_us = now - window.start
    if not account.has_begun or window.end >= FOR_EVER or passed_us <= 0:
        return None
    lasts_us = account.left_micros * passed_us // book.spent_micros if book.spent_micros else None
    return BurnDocument(
        passed_percent=percent(passed_us, window.end - window.start),
        spent_percent=percent(book.spent_micros, book.limit_micros),
        held_percent=percent(book.held_micros, book.limit_micros),
        lasts_until=timestamp(now + lasts_us) if lasts_us is not None and now + lasts_us < window.end else None,
    )


def percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def journal_entry_document(entry: JournalEntry) -> JournalEntryDocument:
    return JournalEntryDocument(
        seq=entry.seq,
        at=timestamp(entry.at),
        kind=entry.kind,
        hold=entry.hold,
        name=entry.name,
        window=entry.window.label,
        held=amount_text(entry.held_micros),
        spent=amount_text(entry.spent_micros),
        threshold_percent=entry.crossed,
        by=entry.by,
        reason=entry.reason,
        before=None if entry.from_micros is None else amount_text(entry.from_micros),
    )


def hold_document(hold: Hold) -> HoldDocument:
    lines = [
        HoldLineDocument(
            name=line.name,
            unit=line.unit,
            window=line.window.label,
            held=amount_text(line.amount_micros),
            charged=None if line.actual_micros is None else amount_text(line.actual_micros),
        )
        for line in hold.lines
    ]
    return HoldDocument(hold=hold.id, state=hold.state, deadline=timestamp(hold.deadline), lines=lines)


def hold_settled_document(hold: str, evidence: Evidence, corrections: Sequence[Correction]) -> HoldSettledDocument:
    documents = [
        CorrectionDocument(
            name=each.name,
            unit=each.unit,
            window=each.window,
            before=amount_text(each.before_micros),
            after=amount_text(each.after_micros),
        )
        for each in corrections
    ]
    return HoldSettledDocument(hold=hold, by=evidence.by, reason=evidence.reason, corrections=documents)
