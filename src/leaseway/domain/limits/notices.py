"""What the limiter is told about a provider's reply: each limit hears what the reply says in the limit's own unit.

The requests that remain say nothing about a limit on tokens. A refusal closes the limit that it is about, if the
headers or the body say which; otherwise it closes all limits of the call. A circuit breaker hears of every call that
failed, and of answers while it counts failures.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from leaseway.domain.limits.breaker import NO_BREAKER
from leaseway.domain.limits.buckets import Granted, Notice
from leaseway.domain.limits.limit import REQUESTS, LimitDefinition, PermitRequest, size_limit
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus


def make_notices(
    granted: Granted,
    requests: Sequence[PermitRequest],
    status: RateLimitStatus,
    definitions: Mapping[str, LimitDefinition],
    failing: Collection[str] = (),
) -> Iterator[tuple[PermitRequest, Notice]]:
    """The notices about one reply, each with the request that it concerns. `requests`: the limits that the provider
    knows, unlike the limit of a tenant. `failing`: limits whose last call failed here: the breaker must hear of an
    answer, although the permit may have been taken ahead, before that failure."""
    if not (granted.circuits or status.throttled or status.others) and status.remaining is None:
        return  # most replies say nothing
    units = {each: limit_unit(each, definitions) for each in requests}
    refused = {each for each in requests if status.throttled and status.refuses(units[each], each.cost)}
    for place, (request, generation) in enumerate(zip(granted.asks, granted.generations, strict=True)):
        if request not in units:
            continue
        is_refused = status.throttled and (not refused or request in refused)
        notice = make_notice(request, generation, status, units[request], is_refused)
        if granted.circuits and granted.circuits[place] != NO_BREAKER:
            is_watched = granted.watched[place] or request.name in failing
            notice = with_call(notice, granted.circuits[place], status.is_fault, is_watched)
        is_less = notice.remaining is not None and notice.remaining < burst(request, definitions)
        if notice.throttled or notice.failed or notice.answered or is_less:
            yield request, notice


def with_call(notice: Notice, circuit: int, is_fault: bool, is_watched: bool) -> Notice:
    return replace(notice, circuit=circuit, failed=is_fault, answered=not is_fault and is_watched)


def make_notice(
    request: PermitRequest, generation: int, status: RateLimitStatus, unit: str, is_refused: bool
) -> Notice:
    quota, retry_after_us = status.quota(unit), status.retry_after_us if is_refused else None
    remaining, reset_us = (None, None) if quota is None else (quota.remaining, quota.reset_us)
    if is_refused and retry_after_us is None and remaining is not None and remaining < request.cost:
        retry_after_us = reset_us
    return Notice(
        name=request.name,
        limit=request.limit,
        generation=generation,
        throttled=is_refused,
        retry_after_us=retry_after_us,
        remaining=remaining,
        reset_us=reset_us,
    )


def limit_unit(request: PermitRequest, definitions: Mapping[str, LimitDefinition]) -> str:
    definition = definitions.get(request.limit)
    return REQUESTS if definition is None else definition.unit


def burst(request: PermitRequest, definitions: Mapping[str, LimitDefinition]) -> int:
    definition = definitions.get(request.limit)
    return 0 if definition is None else max((each.burst for each in size_limit(definition).windows), default=0)
