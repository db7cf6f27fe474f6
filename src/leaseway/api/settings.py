"""The options of `leaseway serve`."""

from msgspec import Struct


class ServiceSettings(Struct, frozen=True, kw_only=True):
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
    imports: str | None = None
    """A folder of import specs. None: the service has no imports."""
