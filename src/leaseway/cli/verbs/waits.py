"""What keeps gates shut now: asked of the limiter and of the ledger, only as far as somebody needs them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from leaseway.cli.settings import Settings
from leaseway.cli.verbs.limiters import definitions_of, limits_url, look_at, looking
from leaseway.cli.verbs.stores import ledger_in
from leaseway.domain.errors import LeasewayError
from leaseway.domain.exchange import Gate
from leaseway.domain.gates import (
    Shut,
    asks_of,
    needs_seen,
    shut_by_budget,
    shut_by_limit,
    unanswered_limit,
    undefined_limit,
)
from leaseway.domain.ids import Instant
from leaseway.domain.limits import Ask
from leaseway.domain.needs import Charge
from leaseway.ports.store import Store

Shuts = dict[Gate, list[Shut]]


async def shut_gates(settings: Settings, store: Store, gates: Iterable[Gate], now: Instant) -> Shuts:
    """Those that are shut, with everything that keeps them so. `now`: on the store's clock."""
    asked = list(dict.fromkeys(gates))
    tenants = {tenant.name: tenant for tenant in await store.tenants()}
    asks = {gate: asks_of(gate, tenants) for gate in asked}
    charges = {gate: needs_seen(gate.needs).budgets for gate in asked}
    by_ask = await shut_limits(settings, list(dict.fromkeys(chain(*asks.values()))))
    by_charge = await shut_budgets(settings, store, list(dict.fromkeys(chain(*charges.values()))), now)
    found = {gate: [*_of(asks[gate], by_ask), *_of(charges[gate], by_charge)] for gate in asked}
    return {gate: shuts for gate, shuts in found.items() if shuts}


def _of(needed: Sequence[Ask] | Sequence[Charge], shuts: Mapping[Ask | Charge, Shut]) -> list[Shut]:
    return [shuts[each] for each in needed if each in shuts]


async def shut_limits(settings: Settings, asks: Sequence[Ask]) -> dict[Ask | Charge, Shut]:
    if not asks:
        return {}
    try:
        async with looking(limits_url(settings)) as limiter:
            defined = await definitions_of(limiter)
            known = [ask for ask in asks if ask.limit in defined]
            seen = await look_at(limiter, known) if limiter is not None else {}
    except LeasewayError as error:
        # Workers may reach it where we do not: it is no reason to say nothing about the job.
        return {ask: unanswered_limit(ask, error) for ask in asks}
    found: dict[Ask | Charge, Shut] = {}
    for ask in asks:
        at = seen.get(Ask(ask.name, ask.limit))
        if at is None:
            found[ask] = undefined_limit(ask)
        elif (shut := shut_by_limit(ask, defined[ask.limit][0], at)) is not None:
            found[ask] = shut
    return found


async def shut_budgets(
    settings: Settings, store: Store, charges: Sequence[Charge], now: Instant
) -> dict[Ask | Charge, Shut]:
    if not charges:
        return {}
    ledger = ledger_in(store, settings)
    definitions = [definition for definition, _ in await ledger.definitions()]
    accounts = await ledger.books([charge.name for charge in charges])
    shuts = {charge: shut_by_budget(charge, definitions, accounts, now) for charge in charges}
    return {charge: shut for charge, shut in shuts.items() if shut is not None}
