"""A running hash of every event. Equal hashes mean equal histories."""

import hashlib
from collections.abc import Callable
from typing import Any

from leaseway.domain.budgets.budget import HoldBooked, HoldDenied, HoldGranted, HoldUsed
from leaseway.domain.exchange import Exchange, ExchangeReply
from leaseway.domain.job import Settlement
from leaseway.domain.limits.buckets import Granted, Wait
from leaseway.ports.ledger import Posted


class Trace:
    """Lines go into the hash, and to `write` if it is given."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self._digest = hashlib.sha256()
        self._write = write
        self.lines = 0

    def add(self, seconds: float, who: str, what: str) -> None:
        line = f"{seconds:10.6f} {who:10} {what}\n"
        self._digest.update(line.encode())
        self.lines += 1
        if self._write is not None:
            self._write(line)

    def hash(self) -> str:
        return self._digest.hexdigest()[:16]


def brief(verb: str, args: tuple[Any, ...], answer: Any) -> str:
    match verb:
        case "exchange":
            return f"exchange {sent(args[0])} -> {got(answer)}"
        case "submit":
            return f"submit {' '.join(short(job.id) for job in args[0])} -> {' '.join(map(told, answer))}"
        case "renew":
            held = " ".join(short(each.id) for each in args[0])
            return f"renew {held} -> lost {ids(answer.lost)} cancelled {ids(answer.cancelled)}"
        case "checkpoint":
            return f"checkpoint {short(args[0])} {args[2]} -> {answer}"
        case "report":
            return f"report {ids(each.id for each in args[0])}"
        case "cancel":
            return f"cancel {short(args[0])} -> {answer.value}"
        case "fire":
            return f"fire {args[0]} {args[1]} {args[2]} {ids(job.id for job in args[3])} -> {answer}"
        case "retry":
            return f"retry -> {ids(answer)}"
        case "lanes" | "all" | "declare" | "job" | "jobs" | "errors":
            return verb
    return f"{verb} -> {answer}"


def short(job: str) -> str:
    """Enough characters of an id to distinguish it within a run."""
    return job[-6:]


def ids(jobs: Any) -> str:
    return f"[{' '.join(short(job) for job in jobs)}]"


def told(answer: Any) -> str:
    return f"{short(answer.id)}{' replayed' if answer.replayed else ''}"


def sent(call: Exchange) -> str:
    wants = "" if call.wants is None else f" wants {call.wants.count} as {call.wants.token[:6]}"
    return f"{'again ' if call.repeat else ''}[{' '.join(map(said, call.settlements))}]{wants}"


def said(settlement: Settlement) -> str:
    back = " given back" if settlement.returns_attempt else ""
    return f"{short(settlement.id)}:{settlement.token[:6]} {settlement.state.value}{back}"


def got(answer: ExchangeReply) -> str:
    leases = " ".join(f"{short(lease.id)}#{lease.fence}" for lease in answer.leases)
    return f"[{leases}] lost {ids(answer.lost)} cancelled {ids(answer.cancelled)}"


# -- limits and budgets ---------------------------------------------------------------------------------------------


def brief_answer(answer: Any) -> str:
    """A short form of an answer, for the trace."""
    match answer:
        case Granted(count=count):
            return f"{count}"
        case Wait(wait_us, name, why):
            return f"wait {wait_us} us, {name}: {why}"
        case HoldGranted(windows=windows):
            return f"held {windows[0].label}"
        case Posted(holds, settlements):
            return " ".join([*map(brief_answer, holds), *map(str, settlements)])
        case int() | None | HoldBooked() | HoldUsed() | HoldDenied():
            return str(answer)
    return ""


def brief_call(verb: str, args: tuple[Any, ...]) -> str:
    match verb:
        case "acquire" | "end_calls" | "renew_calls" | "levels":
            return " ".join(f"{ask.name}*{ask.cost}" for ask in args[0]) + "".join(f" {each}" for each in args[1:])
        case "hold" | "settle" | "tell":
            return str(args[0])
        case "post":
            return " ".join(each.id for each in (*args[0], *args[1]))
        case "give_back":
            return f"{' '.join(ask.name for ask in args[0].asks)} {args[1]}"
    return ""
