"""`leaseway simulate --history` and `app.recorded_load`: what ran, once more, under other limits."""

import asyncio
import json
from pathlib import Path

import pytest

from leaseway import App, Context, Limit
from leaseway.capacity import JobLoad, ProviderModel, SimulatedRun
from leaseway.capacity.job_mix import JOBS_MAX
from leaseway.cli.main import main
from leaseway.domain.errors import BadValue
from leaseway.domain.history.rows import DONE, FAILED, RUN, TIMES_US, HistoryCell, HistoryRow
from leaseway.domain.ids import SECOND_US
from leaseway.ports.store import require_history

MINUTE_US = 60 * SECOND_US
BUCKET = 36
"""About half a second."""
SECONDS = TIMES_US[BUCKET] / 2 ** (1 / 8) / SECOND_US
MODULE = """
from leaseway import App, Context, Limit

app = App("sqlite:///shop.db")


@app.job(limits=[Limit("maps", "1/second")])
async def geocode(ctx: Context, address: str = "Bern") -> None: ...
"""


async def record(app: App, kind: str, ended: dict[int, int], tenant: str = "default", failed: int = 0) -> None:
    """`ended`: how many attempts ended how many minutes ago."""
    store = await app.store()
    now = await store.reads.now()
    rows = [
        HistoryRow(
            id=f"{kind}/{tenant}/{ago}", at=(now // MINUTE_US - ago) * MINUTE_US, tenant=tenant, queue="default",
            kind=kind, cell=HistoryCell({DONE: count - failed, FAILED: failed}, {RUN: {BUCKET: count}}),
        )
        for ago, count in ended.items()
    ]  # fmt: skip
    await require_history(store).record(rows)


def shop() -> App:
    app = App("memory://")

    @app.job(limits=[Limit("maps", "1/second")])
    async def geocode(ctx: Context, address: str = "Bern") -> None: ...

    @app.job
    async def resize(picture: int = 1) -> None: ...

    return app


async def test_a_recorded_load_has_the_attempts_their_arrivals_and_their_times() -> None:
    """A simulation of other arrivals would show waits that nobody has, or none where everybody waits."""
    async with shop() as app:
        await record(app, "geocode", {10: 60, 8: 30})
        await record(app, "geocode", {8: 30}, tenant="acme", failed=10)
        load = (await app.recorded_load("1h"))["geocode"]
    assert (load.count, load.arrivals) == (120, ((0.0, 60), (120.0, 60)))
    assert load.run_seconds == {SECONDS: 120}
    delays = load.delays(0.0)
    assert (len(delays), delays[0], delays[60]) == (120, 0.0, 120.0)
    assert delays == sorted(delays)


async def test_what_if_the_limit_doubled() -> None:
    """The question that history is kept for: 240 jobs within a minute, behind a limit of one per second."""
    async with shop() as app:
        await record(app, "geocode", {10: 240})
        load = await app.recorded_load("1h")
    at_once = ProviderModel(seconds=0)

    def run(rate: str) -> SimulatedRun:
        return app.simulate(load, workers=[1], provider=at_once, limits={"maps": rate}).runs[0]

    # In a thread, because a simulation has an event loop of its own.
    usual, doubled = await asyncio.to_thread(run, "1x"), await asyncio.to_thread(run, "2x")
    assert (usual.requests, usual.done, doubled.requests) == (240, 240, 240)
    assert 230 < usual.seconds < 300
    assert 110 < doubled.seconds < 150
    assert doubled.wait_p95_seconds < usual.wait_p95_seconds / 2


async def test_recorded_times_occupy_the_slots() -> None:
    """Two slots and jobs of half a second end four jobs per second, whatever the limit says."""
    async with shop() as app:
        await record(app, "resize", {10: 480})
        load = await app.recorded_load("1h")
    run = (await asyncio.to_thread(app.simulate, load, workers=[1], concurrency=2)).runs[0]
    assert run.seconds == pytest.approx(480 * SECONDS / 2, rel=0.05)


async def test_a_history_without_attempts_and_one_that_is_too_long_are_refused() -> None:
    """An empty report would look like a load that costs nothing."""
    async with shop() as app:
        with pytest.raises(BadValue, match="no attempt of these jobs ended in the last 1h"):
            await app.recorded_load("1h")
        with pytest.raises(BadValue, match="must be between 15m and 30d"):
            await app.recorded_load("1y")
        await record(app, "resize", {10: JOBS_MAX + 1})
        with pytest.raises(BadValue, match="200,001 attempts in 1h; 200,000 can be simulated"):
            await app.recorded_load("1h")


def test_a_load_that_contradicts_itself_is_refused() -> None:
    """A model with a wrong number must not look like a result."""
    app = shop()
    broken = {
        "arrivals": JobLoad(count=2, arrivals=((0.0, 1),)),
        "run_seconds": JobLoad(count=1, run_seconds={-1.0: 1}),
    }
    for name, load in broken.items():
        with pytest.raises(BadValue, match=f"jobs: resize: {name}"):
            app.simulate({"resize": load})


def test_the_command_simulates_what_the_store_has_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit is tried in the simulation and not with the provider."""
    (tmp_path / "shop_history.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    asyncio.run(fill(App("sqlite:///shop.db")))
    command = ["simulate", "shop_history:app", "--history", "1h"]
    assert main([*command, "--limit", "maps=2x", "--workers", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["what"] == "the last 1h: 120 geocode"
    assert 55 < shown["runs"][0]["seconds"] < 80
    assert main([*command, "--jobs", "geocode=3"]) == 2
    assert "leave out --jobs" in capsys.readouterr().err
    assert main([*command, "--calls", "resize=3"]) == 2
    assert "resize has no attempts" in capsys.readouterr().err


async def fill(app: App) -> None:
    await record(app, "geocode", {10: 120})
    await app.close()
