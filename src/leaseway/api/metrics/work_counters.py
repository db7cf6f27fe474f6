"""What this process has done for others, counted: jobs taken, jobs handed to workers, and what they brought back."""

from collections.abc import Iterator, Sequence
from typing import Any

from leaseway.api.metrics.prometheus_text import Family, Sample, counter
from leaseway.domain.errors import UsageError
from leaseway.domain.exchange import Exchange, ExchangeReply
from leaseway.domain.job import State, Submitted
from leaseway.stores.http import protocol
from leaseway.stores.http.protocol import Verb

SUBMISSIONS = ("accepted", "replayed", "refused", "failed")
SETTLEMENTS = (*(state.value for state in (State.DONE, State.FAILED, State.CANCELLED, State.PENDING)), "lost")


class Tally:
    """Every counter is there from the start, so that its first step is seen."""

    def __init__(self) -> None:
        self.submissions = dict.fromkeys(SUBMISSIONS, 0)
        self.settlements = dict.fromkeys(SETTLEMENTS, 0)
        self.exchanges = 0
        self.leases = 0

    def submitted(self, answers: Sequence[Submitted | Exception]) -> None:
        for answer in answers:
            if isinstance(answer, Submitted):
                self.submissions["replayed" if answer.replayed else "accepted"] += 1
            else:
                self.submissions["refused" if isinstance(answer, UsageError) else "failed"] += 1

    def worked(self, verb: Verb[Any, Any], asked: Any, said: Any) -> None:
        """What a worker, or a program that submits as one, was answered."""
        if verb is protocol.EXCHANGE:
            self.exchanged(asked, said)
        elif verb is protocol.SUBMIT:
            self.submitted(said)

    def exchanged(self, call: Exchange, reply: ExchangeReply) -> None:
        self.exchanges += 1
        self.leases += len(reply.leases)
        lost = set(reply.lost)
        for settlement in call.settlements:
            self.settlements["lost" if settlement.id in lost else settlement.state.value] += 1

    def families(self) -> Iterator[Family]:
        yield counter(
            "submissions_total", "Jobs that were submitted through this process.",
            [Sample(count, {"answer": answer}) for answer, count in self.submissions.items()],
        )  # fmt: skip
        yield counter("exchanges_total", "Exchanges of workers with this process.", [Sample(self.exchanges)])
        yield counter("leases_granted_total", "Jobs that this process has handed to workers.", [Sample(self.leases)])
        yield counter(
            "settlements_total", "Leases that workers have handed back through this process; pending: to run again.",
            [Sample(count, {"state": state}) for state, count in self.settlements.items()],
        )  # fmt: skip
