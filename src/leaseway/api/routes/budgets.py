"""/v1/budgets: how much may be spent, how much is spent and held, and how budgets are changed."""

from collections.abc import Sequence
from functools import partial

from fastapi import Request
from msgspec import Struct
from msgspec.structs import replace

from leaseway.api.errors import Problem, not_found
from leaseway.api.pagination import PageLimit, paginate
from leaseway.api.preconditions import (
    PRECONDITION_HEADERS,
    PRECONDITION_PROBLEMS,
    change_lock,
    check_version,
    etag,
)
from leaseway.api.request_body import body_fields, read_body
from leaseway.api.responses import DocumentPage, Reply
from leaseway.api.routing import Authenticated, Routes
from leaseway.api.schemas.budgets import (
    BudgetChangedDocument,
    BudgetDocument,
    JournalEntryDocument,
    accounts_for,
    budget_definition_document,
    budget_document,
    journal_entry_document,
)
from leaseway.api.service import get_service
from leaseway.domain.budgets.balances import BudgetWindow
from leaseway.domain.budgets.budget import BudgetDefinition, OverPolicy, check_budget, parse_amount_micros
from leaseway.domain.budgets.calendar_windows import Every
from leaseway.domain.errors import BadValue
from leaseway.domain.identity import Scope
from leaseway.domain.validators import check_name
from leaseway.worker.definitions import DefinitionChange, budget_definitions

routes = Routes("/v1/budgets", "budgets")

DefinitionVersions = Sequence[tuple[BudgetDefinition, int]]


class BudgetBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A whole budget: omitted fields have their default values. Amounts are numbers, or text for exact decimals."""

    unit: str
    limit: str | int | float
    every: Every = Every.TOTAL
    tz: str = "UTC"
    overdraft: str | int | float = 0
    over: OverPolicy = OverPolicy.WAIT


# -- reading --------------------------------------------------------------------------------------------------------


@routes.get("", Scope.OPERATE, problems=(400,))
async def list_budgets(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[BudgetDocument]:
    """List budgets with their windows: spent, held and left amounts, and the pace of spending."""
    world = get_service(request).world
    definitions = await world.ledger.definitions.all()
    shown, more = paginate(request, caller, definitions, lambda each: each[0].name, limit, cursor)
    accounts, now = await world.ledger.reads.balances(), await world.store.reads.now()
    return DocumentPage([budget_document(*each, accounts_for(each[0], accounts), now) for each in shown], more)


@routes.get("/{name:path}/journal", Scope.OPERATE)
async def show_journal(request: Request, name: str, limit: PageLimit = 50) -> DocumentPage[JournalEntryDocument]:
    """List the bookings of a budget, newest first."""
    check_name("name", name)
    ledger = get_service(request).world.ledger
    entries = await ledger.reads.journal(name, limit)
    if not entries:
        find_definition(
            name, await ledger.definitions.all(), await ledger.reads.balances()
        )  # 404 if there is no such budget
    return DocumentPage([journal_entry_document(entry) for entry in entries], None)


@routes.get("/{name:path}", Scope.OPERATE)
async def show_budget(request: Request, name: str) -> Reply[BudgetDocument]:
    """Show one budget. The name may also be an instance of a budget with fields: spend:acme for spend:{tenant}."""
    world = get_service(request).world
    accounts = await world.ledger.reads.balances()
    definition, version = find_definition(name, await world.ledger.definitions.all(), accounts)
    named = [account for account in accounts_for(definition, accounts) if name in (account.name, definition.name)]
    shown = budget_document(definition, version, named, await world.store.reads.now())
    shown.name, shown.budget = name, definition.name
    return Reply(shown, headers=etag(version))


def find_definition(
    name: str, definitions: DefinitionVersions, accounts: Sequence[BudgetWindow]
) -> tuple[BudgetDefinition, int]:
    """The definition with this name, or the definition with fields that applies to this name."""
    applies = {account.name: account.budget for account in accounts}
    for definition, version in definitions:
        if definition.name in (name, applies.get(name)):
            return definition, version
    advice = "a worker declares the budgets of its app when it starts, or you define them with PUT"
    raise not_found("budget", name, advice)


# -- changing -------------------------------------------------------------------------------------------------------


@routes.put(
    "/{name:path}", Scope.OPERATE, body=BudgetBody, problems=PRECONDITION_PROBLEMS, also=(201,),
    headers=PRECONDITION_HEADERS,
)  # fmt: skip
async def put_budget(request: Request, name: str) -> Reply[BudgetChangedDocument]:
    """Define a budget, or replace its definition. It takes effect immediately, also for the current window."""
    wanted = parse_definition(name, await read_body(request, BudgetBody))

    def make(before: BudgetDefinition | None) -> BudgetDefinition:
        return wanted if before is None else replace(wanted, paused=before.paused)

    definitions = budget_definitions(get_service(request).world.ledger)
    has_version = partial(check_version, request, f"budget {name}")
    with body_fields(f"budget {name}", "unit"):
        async with change_lock(request):
            return changed_budget(await definitions.change(name, make, has_version))


@routes.post("/{name:path}/pause", Scope.OPERATE, problems=PRECONDITION_PROBLEMS, headers=PRECONDITION_HEADERS)
async def pause_budget(request: Request, name: str) -> Reply[BudgetChangedDocument]:
    """Pause a budget: it grants no holds. Existing holds are settled; jobs wait without using attempts."""
    return await set_paused(request, name, True)


@routes.post("/{name:path}/resume", Scope.OPERATE, problems=PRECONDITION_PROBLEMS, headers=PRECONDITION_HEADERS)
async def resume_budget(request: Request, name: str) -> Reply[BudgetChangedDocument]:
    """Resume a budget. Workers notice within seconds."""
    return await set_paused(request, name, False)


@routes.delete(
    "/{name:path}", Scope.OPERATE, status_code=204, problems=(*PRECONDITION_PROBLEMS, 409),
    headers=PRECONDITION_HEADERS,
)  # fmt: skip
async def delete_budget(request: Request, name: str) -> None:
    """Forget a budget with its windows and journal. Refused while it has holds."""
    definitions = budget_definitions(get_service(request).world.ledger)
    async with change_lock(request):
        try:
            await definitions.forget(name, partial(check_version, request, f"budget {name}"))
        except BadValue as error:
            raise Problem(409, "held", str(error)) from error


async def set_paused(request: Request, name: str, is_paused: bool) -> Reply[BudgetChangedDocument]:
    definitions = budget_definitions(get_service(request).world.ledger)
    has_version = partial(check_version, request, f"budget {name}")
    async with change_lock(request):
        return changed_budget(await definitions.pause(name, is_paused, has_version))


def changed_budget(change: DefinitionChange[BudgetDefinition]) -> Reply[BudgetChangedDocument]:
    after = change.after
    document = BudgetChangedDocument(
        name=after.name, version=change.version, paused=after.paused, definition=budget_definition_document(after)
    )
    return Reply(document, 201 if change.before is None else 200, etag(change.version))


def parse_definition(name: str, given: BudgetBody) -> BudgetDefinition:
    check_name("name", name)
    field = f"budget {name}"
    with body_fields(field, "unit", {given.unit: "unit"}):
        return check_budget(
            BudgetDefinition(
                name=name,
                unit=given.unit,
                limit_micros=parse_amount_micros(f"{field}: limit", given.limit),
                every=given.every,
                tz=given.tz,
                overdraft_micros=parse_amount_micros(f"{field}: overdraft", given.overdraft, zero=True),
                over=given.over,
            )
        )
