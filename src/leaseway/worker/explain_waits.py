"""lanes, jobs ─► [what keeps their gates shut] ─► people who ask why nothing starts

Asked of the limiter and of the ledger, only as far as somebody needs them. The command line and the API look through
here; how each of them reaches a limiter is its own affair.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from leaseway.domain.errors import UnknownLimit
from leaseway.domain.exchange import Gate
from leaseway.domain.gates import Seen, Shut, asks_of, needs_seen, shut_by_budget, shut_by_limit, undefined_limit
from leaseway.domain.ids import Instant
from leaseway.domain.limits.limit import Ask, Definition
from leaseway.domain.limits.validation import ASKS_MAX
from leaseway.domain.requirements import Charge
from leaseway.ports.ledger import Ledger
from leaseway.ports.limiter import Limiter
from leaseway.ports.tenant_store import TenantStore

Shuts = dict[Gate, list[Shut]]
Found = Mapping[Ask | Charge, Shut]
AskLimits = Callable[[Sequence[Ask]], Awaitable[Found]]
AskBudgets = Callable[[Sequence[Charge]], Awaitable[Found]]
Defined = dict[str, tuple[Definition, int]]
"""Limits by name, each with its version."""


async def shut_gates(store: TenantStore, gates: Iterable[Gate], limits: AskLimits, budgets: AskBudgets) -> Shuts:
    """Those that are shut, with everything that keeps them so."""
    asked = list(dict.fromkeys(gates))
    tenants = {tenant.name: tenant for tenant in await store.tenants()} if asked else {}
    asks = {gate: asks_of(gate, tenants) for gate in asked}
    charges = {gate: needs_seen(gate.needs).budgets for gate in asked}
    every_ask, every_charge = list(dict.fromkeys(chain(*asks.values()))), list(dict.fromkeys(chain(*charges.values())))
    by_ask = await limits(every_ask) if every_ask else {}
    by_charge = await budgets(every_charge) if every_charge else {}
    found = {gate: [*_of(asks[gate], by_ask), *_of(charges[gate], by_charge)] for gate in asked}
    return {gate: shuts for gate, shuts in found.items() if shuts}


def _of(needed: Sequence[Ask] | Sequence[Charge], shuts: Found) -> list[Shut]:
    return [shuts[each] for each in needed if each in shuts]


async def shut_budgets(ledger: Ledger, charges: Sequence[Charge], now: Instant) -> Found:
    """`now`: on the store's clock."""
    definitions = [definition for definition, _ in await ledger.definitions()]
    accounts = await ledger.books([charge.name for charge in charges])
    shuts = {charge: shut_by_budget(charge, definitions, accounts, now) for charge in charges}
    return {charge: shut for charge, shut in shuts.items() if shut is not None}


# -- limits ---------------------------------------------------------------------------------------------------------


async def shut_limits(limiter: Limiter, asks: Sequence[Ask]) -> Found:
    defined = await definitions_of(limiter)
    seen = await levels_of(limiter, (ask for ask in asks if ask.limit in defined))
    return shut_by_levels(asks, defined, seen)


def shut_by_levels(asks: Sequence[Ask], defined: Defined, seen: Mapping[Ask, Seen]) -> Found:
    found: dict[Ask | Charge, Shut] = {}
    for ask in asks:
        at = seen.get(Ask(ask.name, ask.limit))
        if at is None:
            found[ask] = undefined_limit(ask)
        elif (shut := shut_by_limit(ask, defined[ask.limit][0], at)) is not None:
            found[ask] = shut
    return found


async def definitions_of(limiter: Limiter) -> Defined:
    return {definition.name: (definition, version) for definition, version in await limiter.definitions()}


async def levels_of(limiter: Limiter, asks: Iterable[Ask]) -> dict[Ask, Seen]:
    """The levels of all that are defined; one that is forgotten at this moment is left out."""
    seen: dict[Ask, Seen] = {}
    for batch in batches(dict.fromkeys(Ask(ask.name, ask.limit) for ask in asks)):
        seen |= await _look(limiter, batch)
    return seen


def batches(asks: Iterable[Ask]) -> Iterator[list[Ask]]:
    """As many as one look takes, and no name twice."""
    batch: dict[str, Ask] = {}
    for ask in asks:
        if len(batch) == ASKS_MAX or ask.name in batch:
            yield list(batch.values())
            batch = {}
        batch[ask.name] = ask
    if batch:
        yield list(batch.values())


async def _look(limiter: Limiter, batch: list[Ask]) -> dict[Ask, Seen]:
    try:
        now, levels = await limiter.look(batch)
    except UnknownLimit:
        # One of them is gone. It must not take the others along.
        alone = [[ask] for ask in batch] if len(batch) > 1 else []
        return {ask: seen for each in alone for ask, seen in (await _look(limiter, each)).items()}
    return {ask: Seen(level, now) for ask, level in zip(batch, levels, strict=True)}
