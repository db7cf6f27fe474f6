"""How much, how often and how long: everything about being live has an end."""

from msgspec import Struct

SECOND_MS = 1_000


class Bounds(Struct, frozen=True, kw_only=True):
    listeners_max: int = 2_000
    """Of one process."""
    tenant_listeners_max: int = 1_000
    """Of one tenant at one process."""
    look_seconds: float = 0.2
    listener_seconds: float = 0.002
    """So much longer is the time between two looks for each listener: a thousand are told every two seconds, and
    what they cost stays a small part of what the process does."""
    idle_share: float = 0.8
    """Of the time at least, nobody looks: on a store that answers slowly, looks become rare."""
    shared_seconds: float = 1.0
    """Between two looks at limits, budgets and imports."""
    linger_seconds: float = 5.0
    """So long the looking goes on when nobody listens any more: who polls comes back."""
    beat_seconds: float = 15.0
    send_seconds: float = 10.0
    """A listener that has not taken a frame by then is too slow, and is dropped."""
    check_seconds: float = 30.0
    """Between two looks at a listener's credential."""
    life_seconds: float = 3_600.0
    """Then it shall connect again: at another process, perhaps, that has less to do."""
    wait_seconds_max: float = 30.0
    """Of one poll."""
    follow_max: int = 200
    """Jobs that one listener follows."""
    followed_max: int = 2_000
    """Jobs that all listeners of one process follow."""
    follow_look: int = 500
    """Of these, so many are looked at in one look, in turn."""
    newest: int = 200
    ended: int = 100
    """Jobs that one look asks for: who makes more than that in a fifth of a second sees a sample of them in passing."""
    again: int = 200
    """Of the jobs that were seen and have not ended, so many are looked at again in each look, in turn."""
    crowd: int = 200
    """With more listeners than that, a look asks for a tenth of these jobs: each costs every listener."""
    words_max: int = 20
    """What a listener may say on a WebSocket in one interval of `beat_seconds`."""


FRAME_BYTES_MAX = 64 * 1024
"""What differs by more comes in several frames. A listener that was cut off between two of them starts at the first."""
