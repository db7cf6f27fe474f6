"""A stand-in of Open Charge Map's API on this machine, for demos and for your own tests, traps included.

    async with standin(places(), limits=["50/second"]) as it:
        …                                              # an import from it.url
        it.faults = Faults(empty_every=20)
        assert rows == it.table.readable()

In a process of its own: python -m leaseway.testing.fake_open_charge_map --port 8899 --rows 20000 --limit "50/second"
"""

from leaseway.testing.fake_open_charge_map.data import places, synthetic
from leaseway.testing.fake_open_charge_map.faults import Faults
from leaseway.testing.fake_open_charge_map.lists import Listing
from leaseway.testing.fake_open_charge_map.poi import Poi
from leaseway.testing.fake_open_charge_map.server import StandIn, standin

API_KEY = "0f0f0f0f-0000-4000-8000-000000000001"
"""Any key of this form is accepted, unless the stand-in was told which."""

__all__ = ["API_KEY", "Faults", "Listing", "Poi", "StandIn", "places", "standin", "synthetic"]
