"""One measurement in a process of its own: `python -m leaseway.bench.probe NAME URL COUNT` prints JSON.

The process does only what it measures, so that its memory is that of a worker and no cache is warm that would be cold
in production. The store is a real one with full durability; jobs do nothing and have a payload of 200 bytes.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

from leaseway.bench.drain import drain, drain_for, drain_until_empty
from leaseway.bench.pickup import idle, pickup_other_process, pickup_same_process, pickup_worker
from leaseway.bench.processes import Figures
from leaseway.bench.submit import submit_at_once, submit_bulk, submit_plain, submit_single

PROBES: dict[str, Callable[[str, int], Awaitable[Figures]]] = {
    probe.__name__: probe
    for probe in (
        *(submit_single, submit_plain, submit_at_once, submit_bulk),
        *(drain, drain_until_empty, drain_for),
        *(pickup_same_process, pickup_other_process, pickup_worker, idle),
    )
}


async def main(name: str, url: str, count: str) -> None:
    print(json.dumps(await PROBES[name](url, int(count))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
