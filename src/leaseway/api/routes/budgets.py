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
from leaseway.api.routing import Authenticated, DocumentPage, Reply, Routes
from leaseway.api.schemas.budgets import (
    BudgetChangedDocument,
    BudgetDocument,
    BudgetRebookedDocument,
    HoldDocument,
    HoldSettledDocument,
    JournalEntryDocument,
    accounts_for,
    budget_definition_document,
    budget_document,
    hold_document,
    hold_settled_document,
    journal_entry_document,
)
from leaseway.api.service import get_service
from leaseway.domain.budgets.balances import BudgetWindow, Evidence
from leaseway.domain.budgets.budget import BudgetDefinition, OverPolicy, check_budget, parse_amount_micros
from leaseway.domain.budgets.calendar_windows import Every
from leaseway.domain.errors import BadValue
from leaseway.domain.identity import Scope
from leaseway.domain.validators import check_name
from leaseway.worker.definitions import DefinitionChange, budget_definitions, correct_hold, forget_budget, rebook

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


class SettleBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """What the provider has charged for a call, by unit or by the name of a budget: {"usd": "0.004"}."""

    hold: str
    amounts: dict[str, str | int | float]
    reason: str = ""


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


@routes.get("/{name:path}/holds", Scope.OPERATE)
async def list_holds(request: Request, name: str, limit: PageLimit = 50) -> DocumentPage[HoldDocument]:
    """List the holds of a budget whose cost is not known, the latest deadline first: open ones, and captured ones,
    which were charged in full because their calls were never settled."""
    check_name("name", name)
    ledger = get_service(request).world.ledger
    holds = await ledger.reads.holds(name, limit)
    if not holds:
        find_definition(name, await ledger.definitions.all(), await ledger.reads.balances())
    return DocumentPage([hold_document(hold) for hold in holds], None)


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
    """Define a budget, or replace its definition. It takes effect immediately, also for the current window. Jobs that
    wait for a later window are brought forward if an earlier one has room now."""
    wanted = parse_definition(name, await read_body(request, BudgetBody))

    def make(before: BudgetDefinition | None) -> BudgetDefinition:
        return wanted if before is None else replace(wanted, paused=before.paused)

    world = get_service(request).world
    has_version = partial(check_version, request, f"budget {name}")
    with body_fields(f"budget {name}", "unit"):
        async with change_lock(request):
            change = await budget_definitions(world.ledger, world.store.operations).change(name, make, has_version)
    return changed_budget(change, await rebook(world.store, world.ledger, name))


@routes.post("/{name:path}/rebook", Scope.OPERATE)
async def rebook_budget(request: Request, name: str) -> BudgetRebookedDocument:
    """Bring forward the jobs that wait for a later window of this budget although an earlier one has room by now. The
    name may also be an instance of a budget with fields."""
    world = get_service(request).world
    find_definition(name, await world.ledger.definitions.all(), await world.ledger.reads.balances())
    return BudgetRebookedDocument(name=name, brought_forward=await rebook(world.store, world.ledger, name))


@routes.post("/settle", Scope.OPERATE, body=SettleBody)
async def settle_hold(request: Request, caller: Authenticated) -> HoldSettledDocument:
    """Correct a captured hold by the provider's evidence. The journal records your credential. Each hold is corrected
    once; repeating the same correction has no further effect."""
    given = await read_body(request, SettleBody)
    check_name("hold", given.hold)
    evidence, world = Evidence(caller.name, given.reason), get_service(request).world
    actuals = {what: parse_amount_micros("amounts", amount, zero=True) for what, amount in given.amounts.items()}
    try:
        corrections = await correct_hold(world.store, world.ledger, given.hold, actuals, evidence)
    except BadValue as error:
        # The ledger's errors are about "hold X" and "settle usd".
        field, _, what = error.field.partition(" ")
        problem = f"{what}: {error.problem}" if what else error.problem
        raise BadValue("amounts" if field == "settle" else field, problem) from error
    return hold_settled_document(given.hold, evidence, corrections)


@routes.post("/{name:path}/pause", Scope.OPERATE, problems=PRECONDITION_PROBLEMS, headers=PRECONDITION_HEADERS)
async def pause_budget(request: Request, name: str) -> Reply[BudgetChangedDocument]:
    """Pause a budget: it grants no holds. Existing holds are settled; jobs wait without using attempts."""
    return await set_paused(request, name, True)


@routes.post("/{name:path}/resume", Scope.OPERATE, problems=PRECONDITION_PROBLEMS, headers=PRECONDITION_HEADERS)
async def resume_budget(request: Request, name: str) -> Reply[BudgetChangedDocument]:
    """Resume a budget. Jobs that wait for it are tried at once."""
    return await set_paused(request, name, False)


@routes.delete(
    "/{name:path}", Scope.OPERATE, status_code=204, problems=(*PRECONDITION_PROBLEMS, 409),
    headers=PRECONDITION_HEADERS,
)  # fmt: skip
async def delete_budget(request: Request, name: str) -> None:
    """Forget a budget with its windows and journal. Holds that wait for a later window are released, and their jobs are
    brought forward. Refused while calls are under way."""
    world = get_service(request).world
    async with change_lock(request):
        try:
            await forget_budget(world.store, world.ledger, name, partial(check_version, request, f"budget {name}"))
        except BadValue as error:
            raise Problem(409, "held", str(error)) from error


async def set_paused(request: Request, name: str, is_paused: bool) -> Reply[BudgetChangedDocument]:
    world = get_service(request).world
    has_version = partial(check_version, request, f"budget {name}")
    async with change_lock(request):
        change = await budget_definitions(world.ledger, world.store.operations).pause(name, is_paused, has_version)
    return changed_budget(change, 0 if is_paused else await rebook(world.store, world.ledger, name))


def changed_budget(change: DefinitionChange[BudgetDefinition], brought_forward: int) -> Reply[BudgetChangedDocument]:
    after = change.after
    document = BudgetChangedDocument(
        name=after.name,
        version=change.version,
        paused=after.paused,
        definition=budget_definition_document(after),
        brought_forward=brought_forward,
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
