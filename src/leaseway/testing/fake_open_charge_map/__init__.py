"""A fake of Open Charge Map's API, for demos and for your own tests, including its peculiarities.

    async with fake_api(places(), limits=["50/second"]) as it:
        …                                              # an import from it.url
        it.faults = Faults(empty_every=20)
        assert rows == it.table.readable()

As a process: python -m leaseway.testing.fake_open_charge_map --port 8899 --rows 20000 --limit "50/second"

    server      the server: limits, keys, faults, pages
    ocm         the rules of the real API; `reference` its reference data
    lists       other kinds of paging, over any list of records
    poi, table  points of interest, their changes, and the lagging mirror that readers see
    data        real and synthetic points of interest
    faults      what goes wrong, and how often
    admin       control from another process
"""

from leaseway.testing.fake_open_charge_map.data import places, synthetic
from leaseway.testing.fake_open_charge_map.faults import Faults
from leaseway.testing.fake_open_charge_map.lists import Listing
from leaseway.testing.fake_open_charge_map.poi import Poi
from leaseway.testing.fake_open_charge_map.server import FakeApi, fake_api

API_KEY = "0f0f0f0f-0000-4000-8000-000000000001"
"""Any key of this form is accepted, unless the server was given a list of keys."""

__all__ = ["API_KEY", "FakeApi", "Faults", "Listing", "Poi", "fake_api", "places", "synthetic"]
