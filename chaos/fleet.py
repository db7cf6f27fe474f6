"""The processes of a round: workers and submitters, in groups that share an address of the store."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from chaos.history import Journal, ProcessEnded, ProcessStarted
from chaos.sabotage import SABOTAGE
from chaos.worker import Orders

ROOT = Path(__file__).parents[1]
LEAVE_SECONDS_MAX = 30.0


class Place(NamedTuple):
    """The place of a process, and of its successors."""

    role: str
    number: int
    group: str


class Member:
    """One process in its place."""

    def __init__(self, place: Place, name: str, orders: Orders, sabotage: str) -> None:
        self.place = place
        self.name = name
        environment = {**os.environ, SABOTAGE: sabotage}
        command = [sys.executable, "-m", f"chaos.{place.role}", msgspec.json.encode(orders).decode()]
        with (Path(orders.folder) / f"{name}.log").open("wb") as log:
            self.popen = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.is_wanted_gone = False


class Fleet:
    def __init__(self, journal: Journal, orders: Orders, urls: dict[str, str], sabotage: str = "") -> None:
        self._journal = journal
        self._orders = orders
        self._urls = urls
        self._sabotage = sabotage
        self._members: dict[Place, Member] = {}
        self._started = 0

    def start(self, place: Place) -> Member:
        """Start a process in this place, which must be free."""
        self._started += 1
        name = f"{place.role}-{place.number}-{self._started}"
        url = self._urls[place.group]
        orders = msgspec.structs.replace(self._orders, name=name, url=url, seed=f"{self._orders.seed}:{name}")
        self._journal.write(ProcessStarted(name=name, role=place.role))
        member = self._members[place] = Member(place, name, orders, self._sabotage)
        return member

    def names(self, groups: Sequence[str] | None = None) -> list[str]:
        """All live processes, or those of certain groups."""
        return [each.name for each in self._members.values() if groups is None or each.place.group in groups]

    def members(self, role: str) -> list[Member]:
        return [each for place, each in sorted(self._members.items()) if place.role == role]

    # -- faults of a process ---------------------------------------------------------------------------------------

    def kill(self, member: Member) -> Place:
        """kill -9; the place is free afterwards."""
        member.is_wanted_gone = True
        member.popen.kill()
        self._ended(member, member.popen.wait())
        return member.place

    def freeze(self, member: Member) -> None:
        member.popen.send_signal(signal.SIGSTOP)

    def thaw(self, member: Member) -> None:
        member.popen.send_signal(signal.SIGCONT)

    def look(self) -> list[str]:
        """Record processes that ended on their own; a successor takes each place, so that the round continues."""
        gone = [each for each in self._members.values() if each.popen.poll() is not None]
        for member in gone:
            self._ended(member, member.popen.returncode)
            self.start(member.place)
        return [each.name for each in gone]

    def leave(self, role: str) -> None:
        """SIGTERM to all processes of a role, and wait until they have exited."""
        leaving = self.members(role)
        for member in leaving:
            member.is_wanted_gone = True
            member.popen.terminate()
        for member in leaving:
            try:
                code = member.popen.wait(LEAVE_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                member.popen.kill()
                code, member.is_wanted_gone = member.popen.wait(), False
            self._ended(member, code)

    def end(self) -> None:
        """Kill every process that still runs."""
        for member in list(self._members.values()):
            self.kill(member)

    def _ended(self, member: Member, code: int) -> None:
        self._journal.write(ProcessEnded(name=member.name, code=code, is_wanted=member.is_wanted_gone))
        del self._members[member.place]

    def said(self, name: str) -> str:
        return (Path(self._orders.folder) / f"{name}.log").read_text(errors="replace")


def places(role: str, count: int, groups: Sequence[str]) -> list[Place]:
    """Assign processes to the groups in turn."""
    return [Place(role, number, groups[number % len(groups)]) for number in range(count)]
