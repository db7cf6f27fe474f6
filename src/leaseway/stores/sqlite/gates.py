"""Gates: close lanes for what a worker has learned from the limiter, and list the gates with ready jobs. These are
steps of an exchange and work on its transaction.
"""

from collections.abc import Sequence

from leaseway.domain.exchange import LANES_MAX, Gate, Gated, Wants
from leaseway.domain.lane import distinct_closings
from leaseway.stores.sqlite.database import Row, Transaction, as_json

NEVER = (None, None)


def close_lanes(transaction: Transaction, wants: Wants) -> None:
    """Store what the worker has learned from the limiter."""
    closings = [
        (each.gate.needs, each.gate.tenant, *((transaction.now + each.wait_us, each.why) if each.wait_us else NEVER))
        for each in distinct_closings(wants.closed)
        if wants.tenant in (None, each.gate.tenant)
    ]
    transaction.run("lanes_close", closings=as_json(closings), queues=as_json(wants.queues))


def list_gates(transaction: Transaction, wants: Wants) -> list[Gated]:
    """The gates behind which jobs are still ready, in the order in which their lanes are served. Only as many lanes are
    read as the list needs, unless lanes share gates."""
    transaction.close()  # the counters must include the jobs that were claimed
    flows = transaction.run("flows_gated", queues=as_json(wants.queues), tenant=wants.tenant, gates_max=LANES_MAX)
    count = -(-LANES_MAX // max(len(flows), 1))
    while True:  # ends, because the number of lanes grows
        gates, is_cut = gates_of_flows(transaction, flows, count)
        if count >= LANES_MAX or len(gates) >= LANES_MAX or not is_cut:
            return [Gated(gate, ready) for gate, ready in gates.items()][:LANES_MAX]
        count = min(4 * count, LANES_MAX)


def gates_of_flows(transaction: Transaction, flows: Sequence[Row], count: int) -> tuple[dict[Gate, int], bool]:
    """The ready jobs behind the gates of the first lanes of each flow, and whether a flow may have more lanes. Flows
    are left out once the first lanes of those before them have enough gates."""
    turns: list[tuple[int, int, Gate, int]] = []
    firsts: set[Gate] = set()
    is_cut = False
    for place, (queue, tenant, has_plain, _) in enumerate(flows):
        lanes = transaction.run("lanes_gated", queue=queue, tenant=tenant, has_plain=has_plain, limit=count)
        turns += [(rank, place, Gate(needs, tenant), ready) for rank, (needs, ready) in enumerate(lanes)]
        is_cut |= len(lanes) == count
        firsts.update(Gate(needs, tenant) for needs, _ in lanes[:1])
        if len(firsts) >= LANES_MAX:
            break
    gates: dict[Gate, int] = {}
    for _, _, gate, ready in sorted(turns):
        gates[gate] = gates.get(gate, 0) + ready
    return gates, is_cut
