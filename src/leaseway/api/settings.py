"""Settings of the service: the options of `leaseway serve`, and the limits and intervals of the live stream."""

from msgspec import Struct

from leaseway.domain.quota import DEFAULT_QUOTAS, Quotas
from leaseway.scaling.pools import PoolSpec


class ServiceSettings(Struct, frozen=True, kw_only=True):
    """The options of `leaseway serve`."""

    host: str = "127.0.0.1"
    port: int = 8420
    auth: bool = True
    """False: authentication is disabled, and anyone who connects has full access. For the loopback address only."""
    hosts: tuple[str, ...] = ()
    """Host names of the service besides the loopback. Requests with another Host header are refused."""
    cursor_secret: bytes = b""
    issuer: str | None = None
    """The issuer of JWTs; None: only API keys are accepted."""
    audience: str | None = None
    jwks_url: str | None = None
    tenant_claim: str = "tenant"
    requests_per_minute: int = 6_000
    """For each tenant."""
    requests_at_once: int = 200
    """For each tenant."""
    worker_requests_per_minute: int = 30_000
    """For the workers of each tenant that have a key of the tenant."""
    worker_requests_at_once: int = 1_000
    """For the same workers. A worker that waits for work has one in progress."""
    quotas: Quotas = DEFAULT_QUOTAS
    """For credentials of one tenant, unless an operator has set others for the tenant."""
    imports: str | None = None
    """A folder of import specs. None: the service has no imports."""
    pools: tuple[PoolSpec, ...] = ()
    """The pools of /v1/scale. Empty: one pool with all queues of the app."""


class LiveSettings(Struct, frozen=True, kw_only=True):
    """Limits and intervals of the live stream."""

    subscribers_max: int = 2_000
    """In one process."""
    tenant_subscribers_max: int = 1_000
    """Of one tenant in one process, and at most half of the places that other tenants leave free: two tenants cannot
    use up all places."""
    poll_seconds: float = 0.2
    subscriber_seconds: float = 0.002
    """The poll interval grows by this time per subscriber: a thousand subscribers are updated every two seconds, which
    keeps their cost a small part of the process's work."""
    idle_share: float = 0.8
    """The minimal share of time between polls: a store that responds slowly is polled less often."""
    shared_seconds: float = 1.0
    """The poll interval of limits, budgets and imports."""
    linger_seconds: float = 5.0
    """How long polling continues without subscribers: a long-polling client comes back."""
    heartbeat_seconds: float = 15.0
    send_seconds: float = 10.0
    """A subscriber that takes longer to receive a frame is disconnected."""
    recheck_seconds: float = 30.0
    """The interval in which a subscriber's credential is checked again."""
    lifetime_seconds: float = 3_600.0
    """After this time a subscriber must reconnect, so that the load spreads over all processes."""
    wait_seconds_max: float = 30.0
    """For one long-polling request."""
    follow_max: int = 200
    """Jobs that one subscriber follows."""
    tenant_followed_max: int = 2_000
    """Jobs that the subscribers of one tenant in one process follow together."""
    followed_per_poll: int = 500
    """How many followed jobs one poll reads. Tenants get equal shares, and the jobs of a tenant take turns."""
    newest: int = 200
    ended: int = 100
    """How many new and finished jobs one poll reads. If more are submitted or finish within one interval, subscribers
    see a sample of them."""
    unfinished: int = 200
    """How many of the unfinished jobs of earlier polls one poll reads again; polls take turns."""
    crowd: int = 200
    """With more subscribers, a poll reads a tenth of these jobs, because every job is sent to every subscriber."""
    messages_max: int = 20
    """How many messages a subscriber may send on a WebSocket per `heartbeat_seconds`."""


FRAME_BYTES_MAX = 64 * 1024
"""Larger changes are sent in several frames. A client that is disconnected in between receives all of them again."""
