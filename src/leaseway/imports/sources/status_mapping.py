"""HTTP status ─► what it means for the import.

2xx                     a page
401, 403                the whole run fails: a wrong key must not be tried in every shard
408, 413, 5xx           the same page again, smaller
425, 429                the same page again
3xx, other 4xx          a permanent error
"""

from leaseway.domain.errors import TerminalError
from leaseway.domain.redact import NO_SECRETS, Redactor
from leaseway.imports.sources.port import BadReply, HeavyPage, SourceBusy, SourceRefused
from leaseway.imports.spec.model import Resource

SAMPLE_LENGTH = 2_000
"""How much of an unusable body is kept."""
BODY_LENGTH_MAX = 65_536
"""How much of it is searched for secrets."""
SHOWN_LENGTH = 200
REFUSING = frozenset({401, 403})
HEAVY = frozenset({408, 413})
"""In addition to 5xx."""
PASSING = frozenset({425, 429})
ABSENT = frozenset({400, 404, 410, 416})


class NoSuchPage(TerminalError):
    """400, 404, 410 or 416: with a cursor, this may be the source's way to say that nothing follows."""


class EndOfSource(NoSuchPage):
    """A status that the spec declares to mean the end."""


class UnusableRequest(TerminalError):
    """Another 4xx: the source does not accept the request."""


class WrongBody(BadReply):
    """Contains the beginning of the body."""

    def __init__(self, problem: str, sample: str = "", is_json: bool = True) -> None:
        super().__init__(f"{problem}; it begins with {sample[:SHOWN_LENGTH]!r}" if sample else problem)
        self.is_json = is_json
        self.problem = problem
        self.sample = sample


def body_sample(body: bytes, redactor: Redactor = NO_SECRETS) -> str:
    """The beginning of a body, without secrets that the source may have echoed."""
    return redactor.head(body[:BODY_LENGTH_MAX].decode("utf-8", "replace"), SAMPLE_LENGTH)


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
        raise HeavyPage(said, is_size=status in HEAVY)
    if status in PASSING:
        raise SourceBusy(said)
    kind = NoSuchPage if status in ABSENT else UnusableRequest
    raise kind(f"{said} (check source.base_url, resource.path and resource.params)")


def act_on_status(resource: Resource, status: int, said: str) -> None:
    """Raises what the spec says about this status."""
    match resource.statuses.get(str(status)):
        case "end":
            raise EndOfSource(said)
        case "retry":
            raise SourceBusy(said)
        case "smaller":
            raise HeavyPage(said, is_size=True)
        case "fail":
            raise SourceRefused(said)
        case "park":
            raise TerminalError(said)
