"""The parsed options, for the commands."""

from dataclasses import dataclass
from typing import NamedTuple

NONE = "none"
"""The value that removes a cap."""


@dataclass
class CliSettings:
    """Options that are valid before or after any command."""

    store: str | None = None
    limits: str | None = None
    json: bool = False
    traceback: bool = False
    runs_handlers: bool = False
    """The command runs user code, which may leave threads behind that never end."""


class Filters(NamedTuple):
    """Filters; all conditions must hold, and None or empty means any."""

    states: tuple[str, ...] = ()
    kind: str | None = None
    queue: str | None = None
    tenant: str | None = None
    error: str | None = None
