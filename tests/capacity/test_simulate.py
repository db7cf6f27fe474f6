"""`app.simulate` and `leaseway simulate`: what a load takes and costs, before it runs."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from leaseway import App, Budget, Context, Limit
from leaseway.capacity import JobLoad, ProviderModel
from leaseway.capacity.simulate import SimulationSettings, simulate_import
from leaseway.cli.main import main
from leaseway.domain.errors import BadValue, LeasewayError
from leaseway.domain.http import HttpReply, HttpRequest
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.plan import build_plan
from leaseway.imports.sources.port import SourceProbe
from leaseway.testing import virtual_time

CALLED: list[str] = []
app = App("memory://")
maps = Limit("maps", "10/second")
spend = Budget("spend", usd=100)


@app.job(limits=[maps], budget=spend, cost_usd=0.005)
async def geocode(ctx: Context, address: str = "Bern") -> None:
    CALLED.append(address)
    await ctx.http.get("https://maps.example/geocode")


@app.job
async def resize(picture: int = 1) -> None:
    CALLED.append("resize")


@app.job(limits=[Limit("of:{tenant}", "5/second")], budget=Budget("b", usd=9), cost=lambda size: size)
async def by_size(ctx: Context, size: float) -> None: ...


INSTANT = ProviderModel(seconds=0.0)


def test_a_limit_sets_the_duration_and_more_workers_do_not_help() -> None:
    """The question behind the command: who pays for a second worker must know that it would only wait."""
    report = app.simulate({"geocode": 100}, workers=[1, 2], provider=ProviderModel(seconds=0.1))
    one, two = report.runs
    assert (one.requests, one.done, one.costs["spend"].amount) == (100, 100, 0.5)
    assert 9 < one.seconds < 13  # a limit that holds in every window grants a little less than its rate
    assert two.seconds == pytest.approx(one.seconds, rel=0.03)
    assert report.knee.workers == 1
    assert "1 worker: more do not help, because they wait for a limit (used: maps" in report.reason
    assert one.wait_p95_seconds > 8


def test_a_doubled_limit_halves_the_time() -> None:
    """ "What if the limit doubled?" is answered without a change of the code."""
    usual = app.simulate({"geocode": 100}, workers=[1], provider=INSTANT).runs[0]
    doubled = app.simulate({"geocode": 100}, workers=[1], provider=INSTANT, limits={"maps": "2x"}).runs[0]
    named = app.simulate({"geocode": 100}, workers=[1], provider=INSTANT, limits={"maps": "20/second"}).runs[0]
    assert doubled.seconds == pytest.approx(usual.seconds / 2, rel=0.1)
    assert named.seconds == doubled.seconds


def test_without_a_limit_workers_share_the_work_until_there_is_none_left_to_share() -> None:
    """The knee must be that of the work, not of the first number that was tried."""
    report = app.simulate({"resize": JobLoad(count=16, seconds=1.0)}, concurrency=4)
    assert [run.workers for run in report.runs] == [1, 2, 4, 8]
    assert [round(run.seconds) for run in report.runs] == [4, 2, 1, 1]
    assert report.knee.workers == 4
    assert "not enough work at a time" in report.reason
    assert report.runs[0].requests == 0


def test_no_function_of_the_app_runs() -> None:
    """A simulation of a paid or destructive job must have no effect."""
    CALLED.clear()
    app.simulate({"geocode": 3, "resize": 3}, workers=[1], provider=INSTANT)
    assert CALLED == []


def test_the_same_seed_gives_the_same_report() -> None:
    """Two people who compare figures must see the same ones."""
    model = ProviderModel(seconds=0.1, p95_seconds=0.5, errors=0.1)
    first, again, other = (app.simulate({"geocode": 30}, workers=[1], provider=model, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_failed_and_refused_requests_are_sent_again() -> None:
    """An optimistic price is worse than none: what the provider refuses costs requests and time."""
    model = ProviderModel(seconds=0.05, errors=0.2, throttled=0.05)
    run = app.simulate({"geocode": 40}, workers=[1], provider=model).runs[0]
    assert run.errors > 0
    assert run.throttled > 0
    assert run.requests == 40 + run.errors + run.throttled
    assert run.done == 40


def test_a_budget_that_is_too_small_is_reported_and_not_waited_for() -> None:
    """The most expensive surprise is a run that stops halfway."""
    report = app.simulate({"geocode": 30}, workers=[1], provider=INSTANT, budgets={"spend": 0.1})
    run = report.runs[0]
    assert (run.done, run.left, run.costs["spend"].amount) == (20, 10, 0.1)
    assert "budget spend" in report.reason


def test_real_costs_replace_the_declared_estimate() -> None:
    """The declared cost is the highest; a forecast of money uses the usual one."""
    model = ProviderModel(seconds=0.0, costs={"usd": 0.002})
    assert app.simulate({"geocode": 50}, workers=[1], provider=model).runs[0].costs["spend"].amount == 0.1


def test_jobs_that_arrive_over_a_time_wait_less() -> None:
    """A day's load is not a backlog."""
    run = app.simulate({"resize": JobLoad(count=20, seconds=0.1)}, workers=[1], over=20).runs[0]
    assert 19 <= run.seconds < 21
    assert run.wait_p95_seconds < 0.5


def test_requests_and_cost_of_a_mix_are_those_of_the_real_handlers() -> None:
    """The same mix through the app's own handlers: requests and money must be equal to the last cent."""
    requests: list[HttpRequest] = []

    def answer(request: HttpRequest) -> HttpReply:
        requests.append(request)
        return HttpReply(200)

    with virtual_time(app, transport=answer) as time:
        time.run(app.submit_many([geocode.bind() for _ in range(40)] + [resize.bind() for _ in range(10)]))
        time.run_until_empty()
        (window,) = time.run(time.ledger.reads.balances(["spend"]))
    run = app.simulate({"geocode": 40, "resize": 10}, workers=[2]).runs[0]
    assert (run.requests, run.done) == (len(requests), 50)
    assert Decimal(window.balance.spent_micros) / 1_000_000 == Decimal(str(run.costs["spend"].amount))


# -- what cannot be simulated ---------------------------------------------------------------------------------------


BAD: list[tuple[dict[str, Any], str]] = [
    ({"jobs": {}}, "jobs: name at least one kind; there are: by_size, geocode, resize"),
    ({"jobs": {"nope": 1}}, "there is no job named 'nope'"),
    ({"jobs": {"geocode": 0}}, "jobs: geocode"),
    ({"jobs": {"geocode": 10_000_000}}, "jobs: geocode"),
    ({"jobs": {"geocode": JobLoad(count=1, seconds=-1)}}, "jobs: geocode: seconds: must be a number from 0"),
    ({"jobs": {"by_size": 1}}, "jobs: by_size: arguments: a limit, a budget or the cost depends on the arguments"),
    ({"jobs": {"by_size": JobLoad(count=1, arguments={"size": "x"})}}, "by_size: size: expected float, got str"),
    ({"workers": [0]}, "workers: must be"),
    ({"concurrency": 0}, "concurrency: must be"),
    ({"provider": ProviderModel(seconds=-0.1)}, "provider: seconds: must be a number from 0 to 3,600"),
    ({"provider": ProviderModel(seconds=1, p95_seconds=0.5)}, "provider: p95_seconds: must not be smaller than"),
    ({"provider": ProviderModel(errors=1.5)}, "provider: errors: must be a number from 0 to 1"),
    ({"provider": ProviderModel(errors=0.6, throttled=0.6)}, "provider: errors: and throttled must not exceed 1"),
    ({"provider": ProviderModel(costs={"usd": -1})}, "provider: costs: usd: must be a number from 0"),
    ({"provider": ProviderModel(costs={"eur": 1})}, "provider: costs: eur: no budget of these jobs has this unit"),
    ({"limits": {"map": "2x"}}, "limits: map: is not declared by what is simulated; declared are: maps"),
    ({"limits": {"maps": "fast"}}, "limits: maps: cannot read the rate 'fast'"),
    ({"budgets": {"spend": -5}}, "budgets: spend"),
]


@pytest.mark.parametrize(("given", "problem"), BAD, ids=[problem for _, problem in BAD])
def test_bad_input_is_named(given: dict[str, Any], problem: str) -> None:
    """A model with a wrong number gives a wrong price; the error names the field."""
    with pytest.raises(LeasewayError) as caught:
        app.simulate(**{"jobs": {"geocode": 1}, **given})
    assert problem in str(caught.value)


# -- imports --------------------------------------------------------------------------------------------------------

SHOP = """
from leaseway import App
from leaseway.testing import virtual_time

app = App("memory://")


@app.importer("shop.things", key="id", sink="sqlite:///things.db", table="things", limits=["10/second"],
              ascending=True, page_limit=50{partition})
async def things(cursor, limit, http):
    raise AssertionError("a simulation sends no request")


@app.job
async def add(x: int = 1) -> None: ...
"""
SPEC = """
version = 1
[source]
name = "countries"
file = "countries.jsonl"
[resource]
key = "code"
[resource.columns]
name = { path = "name", type = "text" }
[sink]
url = "sqlite:///countries.db"
table = "countries"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = [json.dumps({"code": f"{number:03}", "name": "x"}) for number in range(30)]
    (tmp_path / "countries.jsonl").write_text("\n".join(lines))
    (tmp_path / "countries.toml").write_text(SPEC)
    return tmp_path


def simulated_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["simulate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_file_is_imported_in_virtual_time_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`leaseway simulate countries.toml` is the example of the README: it must leave no sink and no store behind."""
    told = simulated_json(capsys, "countries.toml", "--workers", "1,2")
    assert [(run["done"], run["failed"], run["requests"]) for run in told["runs"]] == [(1, 0, 0), (1, 0, 0)]
    assert sorted(path.name for path in folder.iterdir()) == ["countries.jsonl", "countries.toml"]


def test_an_import_is_priced_by_the_real_page_loop(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every page and the two requests that confirm the end count, under the limit of the source."""
    (folder / "shop_whole.py").write_text(SHOP.format(partition=""))
    told = simulated_json(capsys, "shop_whole:things", "--rows", "2000", "--workers", "1", "--provider", "0.01")
    (run,) = told["runs"]
    assert run["requests"] == 2000 / 50 + 1 + 2
    assert 3.5 < run["seconds"] < 5.5


def test_an_app_without_jobs_says_what_to_give(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`leaseway simulate tasks:app` is what people type first."""
    (folder / "shop_app.py").write_text(SHOP.format(partition=""))
    assert main(["simulate", "shop_app:app"]) == 2
    assert "--jobs: say how many, for example --jobs KIND=1000; shop_app:app has: add" in capsys.readouterr().err
    assert main(["simulate", "shop_app:things"]) == 2
    assert "rows: the source does not say how many there are; give their number with --rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--jobs", "add"], "--jobs: cannot read 'add'; write NAME=VALUE"),
        (["--jobs", "add=many"], "--jobs: cannot read the value in 'add=many'"),
        (["--jobs", "add=1", "--calls", "sub=1"], "calls: sub is not among --jobs"),
        (["--jobs", "add=1", "--workers", "1,x"], "--workers: must be whole numbers"),
        (["--jobs", "add=1", "--provider", "fast"], "--provider: must be seconds"),
    ],
)
def test_options_that_cannot_be_read_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    """A mistyped option must not simulate something else."""
    (folder / "shop_bad.py").write_text(SHOP.format(partition=""))
    assert main(["simulate", "shop_bad:app", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_the_table_and_the_chart_show_the_knee(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People read the picture first."""
    (folder / "shop_chart.py").write_text(SHOP.format(partition=""))
    assert main(["simulate", "shop_chart:app", "--jobs", "add=8", "--work", "add=1", "--concurrency", "4"]) == 0
    out = capsys.readouterr().out
    assert "8 add" in out
    assert f"1  {'█' * 40} 2.0 s\n" in out
    assert f"2  {'█' * 20} 1.0 s  ← knee\n" in out


def test_shards_by_id_share_the_rows_and_are_split_for_idle_workers(folder: Path) -> None:
    """One large shard must not look as if it could not be divided: the real run divides it."""
    (folder / "spec.toml").write_text(
        SPEC.replace('file = "countries.jsonl"', 'base_url = "https://api.example"\nlimits = ["1000/second"]').replace(
            'key = "code"',
            'path = "/things"\nkey = "id"\n[resource.page]\ncursor = "keyset"\nparam = "after"\nstart = 0\n'
            'limit_param = "limit"\nlimit = 50\n'
            '[resource.partition]\nby = "id_range"\nsize = 100000\nupper = 99999\n',
        )
    )
    parts = load_import("spec.toml")
    plan = build_plan(parts.spec, parts.source.caps, SourceProbe(id_max=99_999), parts.source.limit, 50)
    settings = SimulationSettings(workers=(1, 4), concurrency=1, provider=ProviderModel(seconds=0.1))
    one, four = simulate_import(parts, plan, settings, rows=4_000).runs
    assert one.requests == 4_000 / 50 + 1 + 2  # the last shard is open, for records that are added meanwhile
    assert four.seconds < one.seconds / 2
    assert four.done > 1
    with pytest.raises(BadValue, match="must be between 0 and 2,000,000 to be simulated"):
        simulate_import(parts, plan, replace(settings, workers=(1,)), rows=3_000_000)
