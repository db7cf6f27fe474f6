"""The page of workers shows the truth of the store: idle, running, draining and lost workers."""

import os
from pathlib import Path

from playwright.async_api import Page, expect
from tests.dashboard.dashboard_page import open_dashboard

from leaseway.domain.ids import SECOND_US
from leaseway.domain.scaling.agreement import FleetShare
from leaseway.domain.scaling.demand import AdmissionBound, PoolObservation, ScalingSettings, WorkGroup
from leaseway.ports.store import require_workers
from leaseway.scaling.agree import PoolSeat, fleet_pool
from leaseway.testing.workers_contract import heartbeat


async def test_idle_workers_are_counted_and_one_is_drained(page: Page, tmp_path: Path) -> None:
    """ "0 workers" above five idle ones sends an operator to the wrong machine at night."""
    async with open_dashboard(tmp_path, page, "/workers") as served:
        registry = require_workers(served.service.world.store)
        await registry.beat(heartbeat("vm:1:idle"))
        await registry.beat(heartbeat("vm:2:busy", used=3))
        row = page.get_by_role("row").filter(has_text="vm:1:idle")
        await expect(row).to_contain_text("0 of 20")
        await expect(page.get_by_role("row").filter(has_text="vm:2:busy")).to_contain_text("running")
        await expect(page.locator("p.lead")).to_have_text("2 workers: 1 running, 1 idle.")
        await page.get_by_role("button", name="Drain vm:1:idle").click()
        await page.locator("dialog").get_by_role("button", name="Drain").click()
        await expect(row).to_contain_text("draining")
        assert (await registry.beat(heartbeat("vm:1:idle"))).drain
        await page.goto(page.url.replace("/workers", "/"))
        await expect(page.locator(".tile", has_text="Leased")).to_contain_text("by 2 workers")


async def test_the_fleet_page_says_how_many_workers_should_run_and_what_binds(page: Page, tmp_path: Path) -> None:
    """An operator who sees 3,600 waiting jobs and one worker must learn here that more of them would only wait."""
    async with open_dashboard(tmp_path, page, "/workers") as served:
        world = served.service.world
        seat = PoolSeat(fleet_pool(["slow"]), ["slow"], 4, ScalingSettings(workers_max=8), 0.0)
        bound = AdmissionBound(what="limit", name="maps", starts_per_second=1.0)
        for at, groups in enumerate(((), (WorkGroup(ready=3_600, costs={str(bound): 1.0}),))):
            now = await world.store.reads.now() / SECOND_US
            seen = PoolObservation(at=now + at / 1_000, groups=groups, bounds={str(bound): bound}, slots_per_worker=4)
            for name, live in (("vm:1", 1), ("vm:2", 1)):
                mine = FleetShare(name=name, live=live, workers_min=0, workers_max=8, seen_at=now)
                await seat.decide(world, mine, seen)
        pool = page.locator("section.pool")
        await expect(pool.get_by_role("heading")).to_have_text("Fleet of slow")
        await expect(pool).to_contain_text("1 worker desired, 2 live; 3,600 jobs ready, 0 running")
        await expect(pool.locator("p.reason")).to_contain_text("limit maps binds: 1.0/s; 1 worker suffices")
        await expect(pool.locator("ul.fleets li")).to_have_count(2)
        rows = pool.get_by_role("table").get_by_role("row")
        await expect(rows.filter(has_text="idle")).to_have_count(1)
        await expect(rows.nth(1)).to_contain_text("limit maps binds")
        await page.screenshot(path=os.environ.get("LEASEWAY_FLEET_PICTURE") or tmp_path / "fleet.png")
