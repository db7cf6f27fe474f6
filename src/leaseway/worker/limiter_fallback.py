"""exchange ─► [admit] ─► run handler: how long a worker waits for the limiter, and what it may send without it.

By default nothing: without the limiter no calls leave. A limit with a `degraded_share` reserves a part of its count
from the start, and up to sixteen workers hold a certificate for a sixteenth of that part each. A worker that cannot
reach the limiter continues with its sixteenth, counted by itself, until its certificate expires. All of these workers
together with those that still reach the limiter stay within the limit.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from leaseway.domain.errors import LeasewayError, TransientError
from leaseway.domain.ids import SECOND_US, Instant, WorkerId
from leaseway.domain.limits.buckets import Acquisition, Granted, Verdict, take
from leaseway.domain.limits.level import NEW, Level
from leaseway.domain.limits.limit import (
    FALLBACK_WORKERS_MAX,
    LimitDefinition,
    PermitRequest,
    Sizing,
    fallback_rate,
    permit_life_us,
    size_window,
)
from leaseway.ports.clock import Clock
from leaseway.ports.limiter import Limiter

ANSWER_SECONDS_MAX = 5.0
"""How long a handler waits for one answer of the limiter, whatever the timeouts of the limiter's connection are."""
CERTIFICATE_US = 600 * SECOND_US
SUFFIX = "~degraded"
SAFE_SHARE = 0.99
"""The part of a certificate's life that is used, because clocks run at different speeds."""


@contextlib.asynccontextmanager
async def answer_in_time() -> AsyncIterator[None]:
    """Bound the wait for the limiter, also for calls that wait behind another one."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX) as scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise TransientError(f"the limiter did not answer within {ANSWER_SECONDS_MAX:g} s") from error


def certificate(definition: LimitDefinition) -> LimitDefinition:
    """A limit with concurrency only: each place under it is a certificate."""
    return LimitDefinition(name=f"{definition.name}{SUFFIX}", concurrency=FALLBACK_WORKERS_MAX)


def size_fallback(definition: LimitDefinition) -> Sizing:
    """The share of one worker that cannot reach the limiter."""
    windows = tuple(size_window(definition, fallback_rate(definition, rate)) for rate in definition.rates)
    return Sizing(windows, None, permit_life_us(definition))


class LimiterFallback:
    def __init__(self, clock: Clock, holder: WorkerId, definitions: Mapping[str, LimitDefinition]) -> None:
        self._clock = clock
        self._holder = holder
        self._definitions = definitions
        self._until: dict[str, float] = {}
        """When the certificates of this worker expire, by the name of their limit."""
        self._levels: dict[str, Level] = {}
        self._since = self._now()

    def certificates(self) -> list[LimitDefinition]:
        return [certificate(definition) for definition in self._definitions.values() if definition.degraded_share]

    async def renew(self, limiter: Limiter) -> None:
        """Take the certificates that are free, and renew those of this worker."""
        for definition in [each for each in self._definitions.values() if each.degraded_share]:
            name, sent_at = definition.name, self._clock.monotonic()
            request = PermitRequest(certificate(definition).name, certificate(definition).name)
            try:
                if self._until.get(name, sent_at) > sent_at:
                    await limiter.renew_calls([request], self._holder, 1, CERTIFICATE_US)
                else:
                    verdict = await limiter.acquire([request], holder=self._holder, in_flight_us=CERTIFICATE_US)
                    if not isinstance(verdict, Granted):
                        continue
            except LeasewayError:
                continue  # a certificate is valid until it expires
            self._until[name] = sent_at + CERTIFICATE_US / SECOND_US * SAFE_SHARE

    async def leave(self, limiter: Limiter) -> None:
        """Return the certificates, so that other workers can have them."""
        for name in list(self._until):
            self._until.pop(name)
            with contextlib.suppress(LeasewayError):
                request = PermitRequest(f"{name}{SUFFIX}", f"{name}{SUFFIX}")
                await limiter.end_calls([request], self._holder, 1)

    def take(self, requests: tuple[PermitRequest, ...], most: int) -> Verdict | None:
        """The verdict of this worker's own share. None: it has none and must wait for the limiter."""
        monotonic, now = self._clock.monotonic(), self._now()
        if any(self._until.get(each.limit, monotonic) <= monotonic for each in requests):
            return None
        sized = [
            Acquisition(each, size_fallback(self._definitions[each.limit]), self._levels.get(each.name, NEW))
            for each in requests
        ]
        verdict, levels = take(sized, now, self._since, 1, most)
        self._levels.update({each.name: level for each, level in zip(requests, levels, strict=True)})
        return verdict

    def _now(self) -> Instant:
        return int(self._clock.monotonic() * SECOND_US)
