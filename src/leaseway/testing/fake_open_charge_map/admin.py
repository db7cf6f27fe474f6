"""Control over the fake API when it runs in a process of its own.

GET  /_admin            counters: requests, refused, pages, rows, the fullest window of each limit
GET  /_admin/truth      {"101": stamp, …}: what a complete import must contain
GET  /_admin/rows       [[101, stamp, title, country, latitude, longitude], …]: the same, with values
GET  /_admin/journal    [[at, status, path], …]: every request, with its time in nanoseconds of a monotonic clock
POST /_admin/faults     {"empty_every": 20}: set these faults, and switch all others off
POST /_admin/update     {"ids": [101]} or {"count": 50}
POST /_admin/insert     {"count": 50}
POST /_admin/delete     {"ids": [101]} or {"count": 50}
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from leaseway.domain.errors import BadValue
from leaseway.testing.fake_open_charge_map.faults import Faults, parse_faults
from leaseway.testing.fake_open_charge_map.poi import TITLE_LENGTH_MAX
from leaseway.testing.fake_open_charge_map.table import Table
from leaseway.testing.provider import Answer, Arrival, ReceivedRequest

PATH = "/_admin"


class Changeable(Protocol):
    """What the control interface uses."""

    table: Table
    arrivals: list[Arrival]

    @property
    def pages(self) -> int: ...
    @property
    def faults(self) -> Faults: ...
    @faults.setter
    def faults(self, faults: Faults) -> None: ...
    def report(self) -> dict[str, Any]: ...


def answer(it: Changeable, request: ReceivedRequest) -> Answer:
    verb = VERBS.get((request.method, request.path.removeprefix(PATH).strip("/")))
    if verb is None:
        return Answer(404, msgspec.json.encode({"error": f"there is {', '.join(f'{m} {PATH}/{v}' for m, v in VERBS)}"}))
    try:
        given = msgspec.json.decode(request.body or "{}", type=dict[str, Any])
        return Answer(body=msgspec.json.encode(verb(it, given)))
    except (BadValue, msgspec.ValidationError, msgspec.DecodeError, TypeError) as error:
        return Answer(400, msgspec.json.encode({"error": str(error)}))


def report(it: Changeable, given: Mapping[str, Any]) -> Any:
    return it.report()


def truth(it: Changeable, given: Mapping[str, Any]) -> Any:
    return it.table.readable()


def rows(it: Changeable, given: Mapping[str, Any]) -> Any:
    return [
        (poi.id, poi.modified, poi.title[:TITLE_LENGTH_MAX], poi.country, poi.latitude, poi.longitude)
        for poi in it.table.truth.values()
        if poi.is_readable
    ]


def journal(it: Changeable, given: Mapping[str, Any]) -> Any:
    return [(arrival.at_ns, arrival.status, arrival.path) for arrival in it.arrivals]


def faults(it: Changeable, given: Mapping[str, Any]) -> Any:
    it.faults = parse_faults(given)
    return it.faults


def update(it: Changeable, given: Mapping[str, Any]) -> Any:
    return {"updated": it.table.update(chosen_ids(it, given))}


def insert(it: Changeable, given: Mapping[str, Any]) -> Any:
    return {"inserted": it.table.insert(int(given.get("count", 1)))}


def publish(it: Changeable, given: Mapping[str, Any]) -> Any:
    return {"published": it.table.publish(chosen_ids(it, given))}


def delete(it: Changeable, given: Mapping[str, Any]) -> Any:
    return {"deleted": it.table.delete(chosen_ids(it, given))}


def chosen_ids(it: Changeable, given: Mapping[str, Any]) -> list[int]:
    if "ids" in given:
        return msgspec.convert(given["ids"], list[int])
    return it.table.some(int(given.get("count", 1)), it.pages)


VERBS: dict[tuple[str, str], Callable[[Changeable, Mapping[str, Any]], Any]] = {
    ("GET", ""): report,
    ("GET", "truth"): truth,
    ("GET", "rows"): rows,
    ("GET", "journal"): journal,
    ("POST", "faults"): faults,
    ("POST", "update"): update,
    ("POST", "insert"): insert,
    ("POST", "publish"): publish,
    ("POST", "delete"): delete,
}
