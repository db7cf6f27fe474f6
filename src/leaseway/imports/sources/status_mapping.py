"""HTTP status ─► what it means for the import.

2xx                     a page
401, 403                the whole run fails: a wrong key must not be tried in every shard
408, 413, 5xx           the same page again, smaller
425, 429                the same page again
3xx, other 4xx          a permanent error
"""

from leaseway.domain.errors import TerminalError
from leaseway.imports.sources.port import BadReply, HeavyPage, SourceRefused

SAMPLE_LENGTH = 2_000
"""How much of an unusable body is kept."""
SHOWN_LENGTH = 200
REFUSING = frozenset({401, 403})
HEAVY = frozenset({408, 413})
"""In addition to 5xx."""
PASSING = frozenset({425, 429})


class WrongBody(BadReply):
    """Contains the beginning of the body."""

    def __init__(self, problem: str, sample: str = "") -> None:
        super().__init__(f"{problem}; it begins with {sample[:SHOWN_LENGTH]!r}" if sample else problem)
        self.problem = problem
        self.sample = sample


def body_sample(body: bytes, secret: str | None = None) -> str:
    """The beginning of a body, without the secret that the source may have echoed."""
    text = body[: SAMPLE_LENGTH * 2].decode("utf-8", "replace")
    return (text.replace(secret, "***") if secret else text)[:SAMPLE_LENGTH]


def check_status(status: int, where: str, sample: str = "", location: str | None = None) -> None:
    """Returns for a page, otherwise raises what the status means."""
    said = f"{where} answers {status}" + (f": {sample[:SHOWN_LENGTH]}" if sample else "")
    if 200 <= status < 300:
        return
    if status in REFUSING:
        raise SourceRefused(f"{said} (check source.auth and the environment variable it names)")
    if 300 <= status < 400:
        hint = f" to {location}; if that is correct, set source.base_url to it" if location else ""
        raise TerminalError(f"{where} answers {status} and redirects{hint}")
    if status in HEAVY or status >= 500:
        raise HeavyPage(said)
    if status in PASSING:
        raise BadReply(said)
    raise TerminalError(f"{said} (check source.base_url, resource.path and resource.params)")


def timeout_errors() -> tuple[type[Exception], ...]:
    """What an HTTP client raises for a slow reply. Page functions may use another client."""
    try:
        import httpx2
    except ImportError:
        return (TimeoutError,)
    return (TimeoutError, httpx2.ReadTimeout)
