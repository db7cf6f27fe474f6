"""What was typed, for the verbs to read."""

from dataclasses import dataclass
from typing import NamedTuple

NONE = "none"
"""The word that takes a cap away."""


@dataclass
class CliSettings:
    """What may be said before or after any command."""

    store: str | None = None
    limits: str | None = None
    json: bool = False
    traceback: bool = False
    runs_handlers: bool = False
    """The command runs other people's code, which may leave threads behind that never end."""


class Filters(NamedTuple):
    """Which jobs; all conditions must hold, None and nothing mean any."""

    states: tuple[str, ...] = ()
    kind: str | None = None
    queue: str | None = None
    tenant: str | None = None
    error: str | None = None
