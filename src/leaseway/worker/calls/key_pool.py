"""exchange ─► admit ─► [run handler: choose a key ─► call the provider] ─► settle: several keys of one provider.

Each key has limits of its own. A call takes the first key whose limits have room now; if none has, the one that will
have it first. A key that the provider refuses with 401 leaves the pool: its limits are closed for the whole fleet, and
its job goes back uncounted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import Limit, LimitUse
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.domain.limits.templates import template_fields
from leaseway.domain.outcome import Deferred
from leaseway.domain.requirements import LimitsOption, parse_limit_uses
from leaseway.domain.validators import check_name
from leaseway.worker.environment import Environment

if TYPE_CHECKING:
    from leaseway.worker.calls.call_needs import CallNeeds, CallOptions
    from leaseway.worker.limiter_client import LimiterClient

FIELD = "key"
DEAD_SECONDS = 3_600.0
"""How long a key that was refused is out of the pool. After that one call tries it again: it may be valid by then."""
RETRY_SECONDS = 1
"""When the job tries another key."""
EMPTY_SECONDS = 60.0
"""How long a job waits if no key is left."""
KEYS_MAX = 100
NO_POOL = "call.key: the call has no pool of keys; write ctx.call(pool=…)"


class KeyPool:
    """Several keys of one provider, each with its own limits: `ctx.call(pool=keys)`.

        keys = KeyPool("openai", {"a": KEY_A, "b": KEY_B}, limits=[Limit("openai-rpm:{key}", "500/minute")])

        async with ctx.call(pool=keys) as call:
            reply = await ctx.http.post(url, headers={"Authorization": f"Bearer {call.key}"})

    `keys`: the secrets by a label, which is part of the names of the limits and of messages. `limits`: those of each
    key; their names contain the field `{key}`.
    """

    def __init__(self, name: str, keys: Mapping[str, str], limits: LimitsOption) -> None:
        field = f"key pool {check_name('key pool', name)}"
        if not isinstance(keys, Mapping) or not keys or len(keys) > KEYS_MAX:
            raise BadValue(f"{field}: keys", f'needs 1 to {KEYS_MAX} keys by label: {{"a": KEY_A, "b": KEY_B}}')
        for label, secret in keys.items():
            check_name(f"{field}: keys", label)
            if not isinstance(secret, str) or not secret:
                raise BadValue(f"{field}: keys: {label}", "must be the secret, a text that is not empty")
        self.name = name
        self.limits = check_limits(field, parse_limit_uses(f"{field}: limits", limits))
        self._keys = dict(keys)
        self._dead_until: dict[str, float] = {}

    def secret(self, label: str) -> str:
        return self._keys[label]

    @property
    def secrets(self) -> Sequence[str]:
        return tuple(self._keys.values())

    def alive(self, now: float) -> list[str]:
        """The labels of the keys that were not refused lately, in the order in which they were given."""
        return [label for label in self._keys if self._dead_until.get(label, now) <= now]

    def drop(self, label: str, now: float) -> None:
        self._dead_until[label] = now + DEAD_SECONDS

    def __repr__(self) -> str:
        return f"KeyPool({self.name!r}, keys {', '.join(self._keys)})"


def check_limits(field: str, uses: Sequence[LimitUse]) -> tuple[LimitUse | Limit, ...]:
    if not uses:
        raise BadValue(f"{field}: limits", 'needs a limit for each key: Limit("openai-rpm:{key}", "500/minute")')
    for use in uses:
        if FIELD not in template_fields(use.limit.name):
            name = use.limit.name
            raise BadValue(f"{field}: limits", f"{name} would be one limit for all keys; name it {name}:{{key}}")
    return tuple(uses)


class KeyUse(NamedTuple):
    """The key of one call."""

    pool: KeyPool
    label: str

    def leave(self, environment: Environment) -> RateLimitStatus:
        """The provider has refused the key. Returns what closes its limits for the whole fleet."""
        self.pool.drop(self.label, environment.clock.monotonic())
        environment.events.emit("key_left_pool", pool=self.pool.name, key=self.label, seconds=DEAD_SECONDS)
        return RateLimitStatus(throttled=True, retry_after_us=int(DEAD_SECONDS * SECOND_US))


class KeyChoice:
    """Chooses the keys of one attempt's calls."""

    def __init__(
        self, needs_with: "Callable[[CallOptions], CallNeeds]", limiter: "LimiterClient", environment: Environment
    ) -> None:
        self._needs_with, self._limiter, self._environment = needs_with, limiter, environment

    async def choose(self, pool: KeyPool, options: "CallOptions") -> "CallNeeds":
        """The needs of a call with the first key that has room, or with the one that will have it first."""
        self._environment.redactor.add(pool.secrets)
        soonest: tuple[int, CallNeeds] | None = None
        for label in pool.alive(self._environment.clock.monotonic()):
            needs = self._needs_with(options._replace(key=KeyUse(pool, label)))
            await self._limiter.declare_new(needs.new_limits)
            units, wait = await self._limiter.expected(needs.limits)
            if wait is None and units >= 1:
                return needs
            wait_us = 0 if wait is None else wait.wait_us
            if soonest is None or wait_us < soonest[0]:
                soonest = wait_us, needs
        if soonest is None:
            why = f"key pool {pool.name}: the provider has refused all of its keys with 401"
            raise Deferred(why, delay_us=int(EMPTY_SECONDS * SECOND_US))
        return soonest[1]
