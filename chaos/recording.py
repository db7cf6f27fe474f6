"""A store that records a worker's calls and their replies. It changes nothing."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from chaos.history import Checkpointed, Exchanged, Granted, Journal, Record, Renewed, Settled, now
from leaseway.domain.exchange import Exchange, HeldLease
from leaseway.domain.exchange import ExchangeReply as ExchangeAnswer
from leaseway.domain.exchange import Renewed as RenewAnswer
from leaseway.domain.ids import SECOND_US, JobId, Token
from leaseway.ports.job_store import JobStore
from leaseway.ports.store import Store

Attempt = tuple[str, str]
"""Job and token."""


class RecordingJobs:
    """Passes every call on. The worker and its lease-renewal thread call it from two threads; every step is
    thread-safe.
    """

    def __init__(self, inner: JobStore, journal: Journal) -> None:
        self._inner = inner
        self._journal = journal
        self._asked: dict[str, float] = {}
        """When a claim was first sent, by its token."""
        self._said: dict[Attempt, float] = {}
        """When a settlement was first sent."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def exchange(self, call: Exchange) -> ExchangeAnswer:
        sent = now()
        for each in call.settlements:
            self._said.setdefault((each.id, each.token), sent)
        if call.wants is not None:
            sent = self._asked.setdefault(call.wants.token, sent)
        answer = await self._inner.exchange(call)
        settled = self._settled(call, answer)
        if call.wants is not None:
            self._asked.pop(call.wants.token, None)
        if answer.leases or settled:
            granted = [
                Granted(job=each.id, token=each.token, fence=each.fence, lease_seconds=each.lease_us / SECOND_US)
                for each in answer.leases
            ]
            self._journal.write(Exchanged(sent=sent, granted=granted, settled=settled, is_repeat=call.repeat))
        return answer

    def _settled(self, call: Exchange, answer: ExchangeAnswer) -> list[Settled]:
        # The reply names jobs, not attempts: of two attempts of one job it is unknown which one was refused.
        twice = {job for job, count in Counter(each.id for each in call.settlements).items() if count > 1}
        lost = set(answer.lost)
        sent = {(each.id, each.token): self._said.pop((each.id, each.token), now()) for each in call.settlements}
        return [
            Settled(
                job=each.id,
                token=each.token,
                state=each.state.value,
                sent=sent[each.id, each.token],
                is_accepted=each.id not in lost,
            )
            for each in call.settlements
            if each.id not in twice
        ]

    async def renew(self, leases: Sequence[HeldLease]) -> RenewAnswer:
        sent = now()
        answer = await self._inner.renew(leases)
        lost = set(answer.lost)
        held = [(each.id, each.token) for each in leases]
        self._write(
            Renewed(
                sent=sent,
                kept=[each for each in held if each[0] not in lost],
                lost=[each for each in held if each[0] in lost],
            )
        )
        return answer

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        sent, value = now(), msgspec.json.decode(cursor, type=int)
        self._write(Checkpointed(job=job, token=token, cursor=value, sent=sent))
        is_kept = await self._inner.checkpoint(job, token, cursor)
        self._write(Checkpointed(job=job, token=token, cursor=value, sent=sent, is_kept=is_kept))
        return is_kept

    def _write(self, record: Record) -> None:
        self._journal.write(record)


def recorded(store: Store, journal: Journal) -> Store:
    """Record the calls of a worker to this store."""
    store.jobs = cast(JobStore, RecordingJobs(store.jobs, journal))
    return store
