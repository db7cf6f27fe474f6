"""What the calls of a worker have in flight, and what they use of limits that are settled, such as tokens."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.domain.limits.learnt_use import LearntUse
from leaseway.domain.limits.limit import COUNT_MAX, LimitDefinition, PermitRequest
from leaseway.domain.limits.sliding_log import NOTHING_USED
from leaseway.ports.limiter import Limiter

RENEWED_US = 30 * SECOND_US
"""How long the limiter keeps a reservation that this worker does not report again."""
NEWS_SHARE = 0.1
"""How much one call changes the typical weight."""


class MeteredUse:
    """Use that the limiter has not acknowledged is sent again. It may then be logged twice, and never lost."""

    def __init__(self, definitions: Mapping[str, LimitDefinition]) -> None:
        self._definitions = definitions
        self._owed: Counter[PermitRequest] = Counter()
        self._typical: dict[str, float] = {}
        self.learnt = LearntUse()

    def includes(self, request: PermitRequest) -> bool:
        definition = self._definitions.get(request.limit)
        return definition is not None and definition.is_metered

    def weight(self, request: PermitRequest) -> int:
        """What one call in flight counts."""
        return request.cost if self.includes(request) else 1

    def group_by_count(self, in_flight: Mapping[PermitRequest, int]) -> dict[int, list[PermitRequest]]:
        """The limits by what is in flight under them. Calls of different cost count for the same limit."""
        by_name: Counter[tuple[str, str]] = Counter()
        for request, count in in_flight.items():
            by_name[request.name, request.limit] += count * self.weight(request)
        by_count: dict[int, list[PermitRequest]] = {}
        for (name, limit), count in by_name.items():
            by_count.setdefault(count, []).append(PermitRequest(name, limit))
        return by_count

    def lane(self, requests: Sequence[PermitRequest]) -> tuple[PermitRequest, ...]:
        """The requests without the weights of one job: calls of different weight wait in one queue."""
        return tuple(replace(each, cost=1) if self.includes(each) else each for each in requests)

    def units(self, requests: Sequence[PermitRequest]) -> dict[str, str]:
        """Of the limits that are settled, by name."""
        return {each.name: self._definitions[each.limit].unit for each in requests if self.includes(each)}

    def note(self, requests: Sequence[PermitRequest]) -> None:
        for each in filter(self.includes, requests):
            before = self._typical.get(each.limit, each.cost)
            self._typical[each.limit] = before + (each.cost - before) * NEWS_SHARE

    def typical(self, request: PermitRequest) -> PermitRequest:
        """The request with the weight that calls of this worker had lately."""
        weight = int(self._typical.get(request.limit, request.cost))
        return replace(request, cost=max(request.cost, weight)) if self.includes(request) else request

    def owe(self, ended: Sequence[PermitRequest], count: int, used: Mapping[str, int] | None) -> list[int]:
        """What ended calls used, in the order of the requests. It is owed until the limiter has logged it."""
        amounts = [self._amount(each, count, used) for each in ended]
        for each, amount in zip(ended, amounts, strict=True):
            self._owed[plain(each)] += amount
        return amounts

    def _amount(self, request: PermitRequest, count: int, used: Mapping[str, int] | None) -> int:
        if not self.includes(request):
            return 0
        if used is NOTHING_USED:
            return 0
        return count * request.cost if used is None else used.get(request.name, count * request.cost)

    def paid(self, ended: Sequence[PermitRequest], amounts: Sequence[int]) -> None:
        for each, amount in zip(ended, amounts, strict=True):
            self._owed[plain(each)] -= amount
            if self._owed[plain(each)] <= 0:
                del self._owed[plain(each)]

    async def correct(
        self, limiter: Limiter, holder: WorkerId, request: PermitRequest, in_flight: Mapping[PermitRequest, int]
    ) -> None:
        """After a lost reply: log what is owed first, and then state what is in flight or reserved."""
        one = plain(request)
        if amount := min(self._owed[one], COUNT_MAX):
            await limiter.end_calls([one], holder, 0, [amount])
            self.paid([one], [amount])
        reserved = sum(count * self.weight(each) for each, count in in_flight.items() if each.name == request.name)
        if reserved:
            await limiter.renew_calls([one], holder, reserved, RENEWED_US)
        else:
            await limiter.end_calls([one], holder, COUNT_MAX, [0])


def plain(request: PermitRequest) -> PermitRequest:
    return PermitRequest(request.name, request.limit)
