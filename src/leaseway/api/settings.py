"""What `leaseway serve` was told."""

from msgspec import Struct


class ServiceSettings(Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8420
    auth: bool = True
    """False is for the loopback only: whoever reaches it may do everything."""
    hosts: tuple[str, ...] = ()
    """Names under which browsers reach it, besides the loopback: every other Host is refused."""
    cursor_secret: bytes = b""
    issuer: str | None = None
    """Of JWTs; None: keys only."""
    audience: str | None = None
    jwks_url: str | None = None
    tenant_claim: str = "tenant"
    requests_per_minute: int = 6_000
    """Of one tenant."""
    requests_at_once: int = 200
    imports: str | None = None
    """A folder of specs. None: the service knows no imports."""
