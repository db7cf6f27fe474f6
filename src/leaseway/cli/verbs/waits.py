"""What keeps gates shut now, as far as it can be seen from here: `flows.waits`."""

from collections.abc import Iterable, Sequence

from leaseway.cli.settings import Settings
from leaseway.cli.verbs.limiters import definitions_of, limits_url, look_at, looking
from leaseway.cli.verbs.stores import ledger_in
from leaseway.domain.errors import LeasewayError
from leaseway.domain.exchange import Gate
from leaseway.domain.gates import unanswered_limit
from leaseway.domain.ids import Instant
from leaseway.domain.limits.limit import Ask
from leaseway.domain.requirements import Charge
from leaseway.ports.store import Store
from leaseway.worker import explain_waits
from leaseway.worker.explain_waits import Found, Shuts


async def shut_gates(settings: Settings, store: Store, gates: Iterable[Gate], now: Instant) -> Shuts:
    """Those that are shut, with everything that keeps them so. `now`: on the store's clock."""

    async def limits(asks: Sequence[Ask]) -> Found:
        return await shut_limits(settings, asks)

    async def budgets(charges: Sequence[Charge]) -> Found:
        return await explain_waits.shut_budgets(ledger_in(store, settings), charges, now)

    return await explain_waits.shut_gates(store, gates, limits, budgets)


async def shut_limits(settings: Settings, asks: Sequence[Ask]) -> Found:
    try:
        async with looking(limits_url(settings)) as limiter:
            defined = await definitions_of(limiter)
            known = [ask for ask in asks if ask.limit in defined]
            seen = await look_at(limiter, known) if limiter is not None else {}
    except LeasewayError as error:
        # Workers may reach it where we do not: it is no reason to say nothing about the job.
        return {ask: unanswered_limit(ask, error) for ask in asks}
    return explain_waits.shut_by_levels(asks, defined, seen)
