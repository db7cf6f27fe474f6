"""/v1/budgets: what may be spent, what is spent and held, and how that is changed."""

from collections.abc import Callable, Sequence

from fastapi import Request
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from leaseway.api.errors import Problem
from leaseway.api.pagination import (
    Done,
    Limit,
    changed,
    changing,
    check_version,
    etag_of,
    paged,
    pointing,
    service_in,
    unknown,
)
from leaseway.api.request_body import body_of
from leaseway.api.responses import answer, page
from leaseway.api.routing import Asking, Routes
from leaseway.api.schemas.budgets import definition_body, document, of_budget
from leaseway.api.schemas.serializers import entry_json
from leaseway.domain.budgets.budget import BudgetDefinition, OverPolicy, check_budget, parse_amount_micros
from leaseway.domain.budgets.calendar_windows import Every
from leaseway.domain.budgets.ledger import BudgetWindow
from leaseway.domain.errors import BadValue
from leaseway.domain.identity import Scope
from leaseway.domain.validators import check_name

routes = Routes("/v1/budgets", "budgets")

Definitions = list[tuple[BudgetDefinition, int]]


class BudgetBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A budget as a whole: what is left out is as if it had never been said. Amounts are numbers, or text where all the
    digits matter."""

    unit: str
    limit: str | int | float
    every: Every = Every.TOTAL
    tz: str = "UTC"
    overdraft: str | int | float = 0
    over: OverPolicy = OverPolicy.WAIT


# -- looking --------------------------------------------------------------------------------------------------------


@routes.get("", Scope.OPERATE)
async def list_budgets(request: Request, caller: Asking, limit: Limit = 50, cursor: str | None = None) -> Response:
    """Every budget with its windows: spent, held, left, and how fast it burns."""
    world = service_in(request).world
    shown, more = paged(request, caller, await world.ledger.definitions(), name_in, limit, cursor)
    accounts, now = await world.ledger.books(), await world.store.now()
    return page([document(*each, of_budget(each[0], accounts), now) for each in shown], more)


@routes.get("/{name:path}/journal", Scope.OPERATE)
async def show_journal(request: Request, name: str, limit: Limit = 50) -> Response:
    """What was booked on a budget, the newest first."""
    check_name("name", name)
    ledger = service_in(request).world.ledger
    entries = await ledger.journal(name, limit)
    if not entries:
        defined_as(name, await ledger.definitions(), await ledger.books())  # says so if there is no such budget
    return page([entry_json(entry) for entry in entries], None)


@routes.get("/{name:path}", Scope.OPERATE)
async def show_budget(request: Request, name: str) -> Response:
    """One budget; also one of those that a budget with fields stands for."""
    world = service_in(request).world
    accounts = await world.ledger.books()
    definition, version = defined_as(name, await world.ledger.definitions(), accounts)
    of_name = [account for account in of_budget(definition, accounts) if name in (account.name, definition.name)]
    shown = document(definition, version, of_name, await world.store.now())
    return answer({**shown, "name": name, "budget": definition.name}, headers=etag_of(version))


def name_in(each: tuple[BudgetDefinition, int]) -> str:
    return each[0].name


def defined_as(name: str, definitions: Definitions, accounts: Sequence[BudgetWindow]) -> tuple[BudgetDefinition, int]:
    """The definition of this name, or the one by which a budget of this name is kept."""
    kept = {account.name: account.budget for account in accounts}
    for definition, version in definitions:
        if definition.name in (name, kept.get(name)):
            return definition, version
    raise unknown("budget", name, "a worker declares those of its app when it starts, or: PUT it here")


# -- changing -------------------------------------------------------------------------------------------------------


@routes.put("/{name:path}", Scope.OPERATE, body=BudgetBody)
async def put_budget(request: Request, name: str) -> Response:
    """Define a budget, or change it as a whole. In force at once, for windows under way too."""
    wanted = definition_of(name, await body_of(request, BudgetBody))

    def kept(before: BudgetDefinition | None) -> BudgetDefinition:
        return wanted if before is None else replace(wanted, paused=before.paused)

    with pointing(f"budget {name}", "unit"):
        return shown_changed(await change_budget(request, name, kept))


@routes.post("/{name:path}/pause", Scope.OPERATE)
async def pause_budget(request: Request, name: str) -> Response:
    """Pause a budget: nothing is held. What is held already is settled; jobs wait, and lose no attempt."""
    return shown_changed(await change_budget(request, name, paused(name, True)))


@routes.post("/{name:path}/resume", Scope.OPERATE)
async def resume_budget(request: Request, name: str) -> Response:
    """Resume a budget. Workers notice within some seconds."""
    return shown_changed(await change_budget(request, name, paused(name, False)))


def paused(name: str, is_paused: bool) -> Callable[[BudgetDefinition | None], BudgetDefinition]:
    def make(before: BudgetDefinition | None) -> BudgetDefinition:
        if before is None:
            raise unknown("budget", name, "a budget with fields is paused as a whole, by its own name")
        return replace(before, paused=is_paused)

    return make


async def change_budget(
    request: Request, name: str, make: Callable[[BudgetDefinition | None], BudgetDefinition]
) -> Done[BudgetDefinition]:
    ledger = service_in(request).world.ledger

    async def look() -> tuple[BudgetDefinition | None, int | None]:
        known = {definition.name: (definition, version) for definition, version in await ledger.definitions()}
        return known.get(name, (None, None))

    async def change(wanted: BudgetDefinition, expected: int) -> int:
        return await ledger.change(wanted, expected=expected)

    async with changing(request):
        return await changed(request, f"budget {name}", look, make, change)


def shown_changed(done: Done[BudgetDefinition]) -> Response:
    after = done.after
    shown = {"name": after.name, "version": done.version, "paused": after.paused, "definition": definition_body(after)}
    return answer(shown, 201 if done.before is None else 200, etag_of(done.version))


@routes.delete("/{name:path}", Scope.OPERATE, status_code=204)
async def delete_budget(request: Request, name: str) -> Response:
    """Forget a budget with its windows and their journal. Refused while something is held."""
    async with changing(request):
        before = await version_of(request, name)
        if before is None:
            raise unknown("budget", name)
        check_version(request, f"budget {name}", before)
        try:
            await service_in(request).world.ledger.forget(name)
        except BadValue as error:
            raise Problem(409, "held", str(error)) from error
    return Response(status_code=204)


async def version_of(request: Request, name: str) -> int | None:
    known = await service_in(request).world.ledger.definitions()
    return next((version for definition, version in known if definition.name == name), None)


def definition_of(name: str, given: BudgetBody) -> BudgetDefinition:
    check_name("name", name)
    field = f"budget {name}"
    with pointing(field, "unit", {given.unit: "unit"}):
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
