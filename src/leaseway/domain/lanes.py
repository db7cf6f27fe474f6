"""How a claim is divided among the lanes that have work."""

from collections.abc import Mapping


def share(count: int, ready: Mapping[int, int]) -> dict[int, int]:
    """Give each lane, in the order of `ready`, an equal share of `count`, and what one cannot use to the others."""
    shares = dict.fromkeys(ready, 0)
    while count > 0:
        hungry = [lane for lane, given in shares.items() if given < ready[lane]]
        if not hungry:
            break
        each = max(count // len(hungry), 1)
        for lane in hungry:
            portion = min(each, ready[lane] - shares[lane], count)
            shares[lane] += portion
            count -= portion
    return {lane: given for lane, given in shares.items() if given}
