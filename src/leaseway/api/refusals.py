"""One answer for every wrong credential: it does not say what was wrong with it."""

from leaseway.api.problems import Problem


def refused() -> Problem:
    return Problem(
        401, "not_authenticated", "this credential is not valid, or not any more; ask whoever made it for a new one",
        headers={"WWW-Authenticate": 'Bearer realm="leaseway", error="invalid_token"'},
    )  # fmt: skip


def anonymous() -> Problem:
    return Problem(
        401, "not_authenticated", "send a key: Authorization: Bearer lw_…",
        headers={"WWW-Authenticate": 'Bearer realm="leaseway"'},
    )  # fmt: skip
