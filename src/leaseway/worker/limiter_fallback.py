"""exchange ─► [admit] ─► run handler: what a worker may do while it cannot reach the limiter.

By default nothing: no limiter, no calls. A limit with a `degraded_share` sets a part of its count aside from the start,
and up to sixteen workers hold a certificate for a sixteenth of that part each. Whoever loses sight of the limiter goes
on with his sixteenth, as long as his certificate lasts, counted by himself. All of them together, and those who still
reach the limiter, stay within the limit.
"""

import contextlib
from collections.abc import Mapping

from leaseway.domain.errors import LeasewayError
from leaseway.domain.ids import SECOND_US, Instant, WorkerId
from leaseway.domain.limits.buckets import NEW, Acquisition, Granted, Level, Verdict, size_fallback, take
from leaseway.domain.limits.limit import FALLBACK_WORKERS_MAX, LimitDefinition, PermitRequest
from leaseway.ports.clock import Clock
from leaseway.ports.limiter import Limiter

CERTIFICATE_US = 600 * SECOND_US
DEGRADED = "~degraded"
SAFE_SHARE = 0.99
"""Of a certificate's time, for clocks that go at different speeds."""


def certificate(definition: LimitDefinition) -> LimitDefinition:
    """A limit of seats: whoever has one holds a certificate."""
    return LimitDefinition(name=f"{definition.name}{DEGRADED}", concurrency=FALLBACK_WORKERS_MAX)


class LimiterFallback:
    def __init__(self, clock: Clock, holder: WorkerId, definitions: Mapping[str, LimitDefinition]) -> None:
        self._clock = clock
        self._holder = holder
        self._definitions = definitions
        self._until: dict[str, float] = {}
        """How long our certificates last, by the names of their limits."""
        self._levels: dict[str, Level] = {}
        self._since = self._now()

    def certificates(self) -> list[LimitDefinition]:
        return [certificate(definition) for definition in self._definitions.values() if definition.degraded_share]

    async def keep(self, limiter: Limiter) -> None:
        """Get the certificates that are free, and keep those that we have."""
        for definition in [each for each in self._definitions.values() if each.degraded_share]:
            name, sent_at = definition.name, self._clock.monotonic()
            ask = PermitRequest(certificate(definition).name, certificate(definition).name)
            try:
                if self._until.get(name, sent_at) > sent_at:
                    await limiter.keep([ask], self._holder, 1, CERTIFICATE_US)
                elif not isinstance(await limiter.take([ask], holder=self._holder, seat_us=CERTIFICATE_US), Granted):
                    continue
            except LeasewayError:
                continue  # what we have lasts until its end
            self._until[name] = sent_at + CERTIFICATE_US / SECOND_US * SAFE_SHARE

    async def leave(self, limiter: Limiter) -> None:
        """Others may have our certificates."""
        for name in list(self._until):
            self._until.pop(name)
            with contextlib.suppress(LeasewayError):
                ask = PermitRequest(f"{name}{DEGRADED}", f"{name}{DEGRADED}")
                await limiter.vacate([ask], self._holder, 1)

    def take(self, asks: tuple[PermitRequest, ...], most: int) -> Verdict | None:
        """The verdict of our own part; None: we have none, and must wait for the limiter."""
        monotonic, now = self._clock.monotonic(), self._now()
        if any(self._until.get(ask.limit, monotonic) <= monotonic for ask in asks):
            return None
        takings = [
            Acquisition(ask, size_fallback(self._definitions[ask.limit]), self._levels.get(ask.name, NEW))
            for ask in asks
        ]
        verdict, levels = take(takings, now, self._since, 1, most)
        self._levels.update({ask.name: level for ask, level in zip(asks, levels, strict=True)})
        return verdict

    def _now(self) -> Instant:
        return int(self._clock.monotonic() * SECOND_US)
