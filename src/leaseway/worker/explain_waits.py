"""Why gates are closed, for `jobs why`, `lanes` and the API.

The limiter and the ledger are asked only for the gates in question. The command line and the API each bring their own
connection to the limiter.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from leaseway.domain.budgets.budget import Charge
from leaseway.domain.errors import UnknownLimit
from leaseway.domain.exchange import Gate
from leaseway.domain.explain.closures import (
    Closure,
    LevelReading,
    closed_by_budget,
    closed_by_limit,
    gate_requests,
    undefined_limit,
)
from leaseway.domain.ids import Instant
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest
from leaseway.domain.limits.validation import PERMIT_REQUESTS_MAX
from leaseway.domain.requirements import readable_needs
from leaseway.ports.definitions import TenantStore
from leaseway.ports.ledger import Ledger
from leaseway.ports.limiter import Limiter

ClosedGates = dict[Gate, list[Closure]]
Closures = Mapping[PermitRequest | Charge, Closure]
AskLimits = Callable[[Sequence[PermitRequest]], Awaitable[Closures]]
AskBudgets = Callable[[Sequence[Charge]], Awaitable[Closures]]
Defined = dict[str, tuple[LimitDefinition, int]]
"""Limits by name, each with its version."""


async def closed_gates(
    tenants: TenantStore, gates: Iterable[Gate], limits: AskLimits, budgets: AskBudgets
) -> ClosedGates:
    """The closed gates of these, with all reasons."""
    asked = list(dict.fromkeys(gates))
    known = {tenant.name: tenant for tenant in await tenants.all()} if asked else {}
    asks = {gate: gate_requests(gate, known) for gate in asked}
    charges = {gate: readable_needs(gate.needs).budgets for gate in asked}
    every_ask, every_charge = list(dict.fromkeys(chain(*asks.values()))), list(dict.fromkeys(chain(*charges.values())))
    by_ask = await limits(every_ask) if every_ask else {}
    by_charge = await budgets(every_charge) if every_charge else {}
    found = {gate: [*_found_for(asks[gate], by_ask), *_found_for(charges[gate], by_charge)] for gate in asked}
    return {gate: shuts for gate, shuts in found.items() if shuts}


def _found_for(needed: Sequence[PermitRequest] | Sequence[Charge], shuts: Closures) -> list[Closure]:
    return [shuts[each] for each in needed if each in shuts]


async def closed_budgets(ledger: Ledger, charges: Sequence[Charge], now: Instant) -> Closures:
    """`now`: the store's clock."""
    definitions = [definition for definition, _ in await ledger.definitions.all()]
    accounts = await ledger.reads.balances([charge.name for charge in charges])
    shuts = {charge: closed_by_budget(charge, definitions, accounts, now) for charge in charges}
    return {charge: shut for charge, shut in shuts.items() if shut is not None}


# -- limits ---------------------------------------------------------------------------------------------------------


async def closed_limits(limiter: Limiter, asks: Sequence[PermitRequest]) -> Closures:
    defined = await limits_by_name(limiter)
    seen = await read_levels(limiter, (ask for ask in asks if ask.limit in defined))
    return closed_by_levels(asks, defined, seen)


def closed_by_levels(
    asks: Sequence[PermitRequest], defined: Defined, seen: Mapping[PermitRequest, LevelReading]
) -> Closures:
    found: dict[PermitRequest | Charge, Closure] = {}
    for ask in asks:
        at = seen.get(PermitRequest(ask.name, ask.limit))
        if at is None:
            found[ask] = undefined_limit(ask)
        elif (shut := closed_by_limit(ask, defined[ask.limit][0], at)) is not None:
            found[ask] = shut
    return found


async def limits_by_name(limiter: Limiter) -> Defined:
    return {definition.name: (definition, version) for definition, version in await limiter.definitions.all()}


async def read_levels(limiter: Limiter, asks: Iterable[PermitRequest]) -> dict[PermitRequest, LevelReading]:
    """The levels of the limits that are defined. A limit that is deleted at this moment is left out."""
    seen: dict[PermitRequest, LevelReading] = {}
    for batch in batches(dict.fromkeys(PermitRequest(ask.name, ask.limit) for ask in asks)):
        seen |= await _look(limiter, batch)
    return seen


def batches(asks: Iterable[PermitRequest]) -> Iterator[list[PermitRequest]]:
    """Batches of the size that one call accepts, without duplicate names."""
    batch: dict[str, PermitRequest] = {}
    for ask in asks:
        if len(batch) == PERMIT_REQUESTS_MAX or ask.name in batch:
            yield list(batch.values())
            batch = {}
        batch[ask.name] = ask
    if batch:
        yield list(batch.values())


async def _look(limiter: Limiter, batch: list[PermitRequest]) -> dict[PermitRequest, LevelReading]:
    try:
        now, levels = await limiter.levels(batch)
    except UnknownLimit:
        # One of them was deleted. The others must still be read.
        alone = [[ask] for ask in batch] if len(batch) > 1 else []
        return {ask: seen for each in alone for ask, seen in (await _look(limiter, each)).items()}
    return {ask: LevelReading(level, now) for ask, level in zip(batch, levels, strict=True)}
