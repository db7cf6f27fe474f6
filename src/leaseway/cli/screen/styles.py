"""Few colours, each with one meaning."""

from leaseway.domain.health import Level
from leaseway.domain.job import State

STATE_STYLES = {
    State.PENDING: "yellow",
    State.LEASED: "cyan",
    State.DONE: "green",
    State.FAILED: "red",
    State.CANCELLED: "dim",
}

LEVEL_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red bold"}
