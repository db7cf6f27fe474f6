"""Stored text comes from tenants, providers and specs. Printed unchanged, an escape sequence in it can rewrite what the
operator sees, set the window's title, or put text on the clipboard."""

import ast
import asyncio
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from tests.cli.place import Answer, Place
from tests.imports.apps import import_app

import leaseway.cli
from leaseway import App, Budget, Limit
from leaseway.cli.main import root
from leaseway.cli.output.console import FOREIGN, Styled, block, facts, note, print_json, print_json_line, say
from leaseway.domain.budgets.budget import Charge
from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.history.rows import HistoryCell, HistoryRow
from leaseway.domain.identity import KeyRequest, Role
from leaseway.domain.ids import Token, WorkerId
from leaseway.domain.job import Failure, Settlement, State
from leaseway.domain.workers import Heartbeat
from leaseway.imports.domain.run_state import RunState
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import plan_with_history
from leaseway.imports.run.start import start_planned
from leaseway.ports.store import Store, require_history, require_workers
from leaseway.system import random_text, wall_clock_us
from leaseway.worker.api_keys import make

MARK = "HOSTILE"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\x7f\rfine\x08\x85\u2028\n  FORGED  line"
FORGED = re.compile(r"^ {0,3}FORGED.*", re.MULTILINE)
"""A line that looks like one of the answer. Tracebacks and other texts of several lines are indented further."""
OWN = re.compile(r"\x1b\[[\d;]*m|\r?\x1b\[2K|\r?\x1b\[1A|\x1b\[\?25[hl]")
"""Colours, and what replaces a line of progress."""

READERS: dict[str, list[str]] = {
    "jobs list": [],
    "jobs show": ["{failed}"],
    "jobs why": ["{failed}"],
    "jobs retry": ["{waiting}"],
    "jobs run-now": ["{waiting}"],
    "jobs cancel": [f"{MARK}-no-such-job"],
    "jobs discard": ["{waiting}"],
    "jobs prune": ["--older-than", "30d"],
    "lanes list": [],
    "lanes pause": [f"q-{MARK}"],
    "lanes resume": [f"q-{MARK}"],
    "limits list": [],
    "limits explain": [f"limit-{MARK}"],
    "limits set": [f"limit-{MARK}", "5/minute"],
    "limits pause": [f"limit-{MARK}"],
    "limits resume": [f"limit-{MARK}"],
    "limits forget": [f"limit-{MARK}-none"],
    "budgets list": [],
    "budgets show": [f"budget-{MARK}"],
    "budgets set": [f"budget-{MARK}", "--usd", "7"],
    "budgets journal": [f"budget-{MARK}"],
    "budgets holds": [f"budget-{MARK}"],
    "budgets settle": [f"hold-{MARK}", "--usd", "0", "--reason", MARK, "--by", MARK],
    "budgets rebook": [f"budget-{MARK}"],
    "budgets pause": [f"budget-{MARK}"],
    "budgets resume": [f"budget-{MARK}"],
    "budgets forget": [f"budget-{MARK}-none"],
    "budgets audit": [],
    "tenants list": [],
    "tenants show": [f"t-{MARK}"],
    "tenants set": [f"t-{MARK}", "--weight", "2"],
    "tenants forget": [f"t-{MARK}-none"],
    "keys list": [],
    "keys create": ["--tenant", f"t-{MARK}"],
    "keys revoke": [f"{MARK}-none"],
    "keys rotate": [f"{MARK}-none"],
    "cron list": [],
    "cron pause": [f"{MARK}-nightly"],
    "cron resume": [f"{MARK}-nightly"],
    "migrate": [],
    "doctor": [],
    "workers list": [],
    "workers drain": [f"host-{MARK}:1:abc"],
    "workers check": [],
    "workers costs": ["--queue", f"q-{MARK}"],
    "stats": ["--tenant", f"t-{MARK}"],
    "import init": ["hostile.json"],
    "scale status": ["--queue", f"q-{MARK}"],
    "backup": ["copy.db"],
    "restore": [f"{MARK}.db"],
    "import plan": ["things.toml"],
    "import run": ["things.toml", "--workers", "1"],
    "import resume": ["things.toml", "--workers", "1"],
    "import status": ["things.toml"],
    "import report": ["things.toml"],
    "import diff": ["things.toml"],
    "import quarantine list": ["things.toml"],
    "import quarantine replay": ["things.toml"],
    "submit": ["tasks:app", MARK],
    "work": ["tasks:app", "--until-empty"],
}
"""Arguments for every command that reads something stored. The mark becomes hostile text."""
OTHERS = {
    *("scale simulate", "simulate", "scaler", "serve", "import work", "demo", "bench", "completion"),
    *("providers list", "providers show"),
}
"""Commands that run until they are stopped, or that read nothing stored."""

SPEC = """
version = 1
[source]
name = "things"
file = "things.jsonl"
[resource]
key = "id"
page = { cursor = "none", limit = 100 }
[resource.columns]
size = { path = "size", type = "integer" }
[resource.on_bad_row]
max_ratio = 1.0
[sink]
url = "sqlite:///data.db"
table = "things"
"""


def leaves(command: click.Command, path: str = "") -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield path.strip()
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, f"{path} {name}")


def test_every_command_is_listed() -> None:
    """A new command that prints stored text must be part of this test."""
    assert set(leaves(root)) == READERS.keys() | OTHERS


class Poisoned(NamedTuple):
    folder: Path
    ids: dict[str, str]


@pytest.fixture(scope="module")
def poisoned_folder(tmp_path_factory: pytest.TempPathFactory) -> Poisoned:
    """A store and a sink in which every name and text is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    ids = asyncio.run(filled(folder))
    lines = [{"id": 1, "size": 1}, {"id": MARK, "size": f"no number {MARK}"}, {"size": MARK}]
    (folder / "things.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    (folder / "things.toml").write_text(SPEC.replace("data.db", f"/{folder}/data.db"), "utf-8")
    asyncio.run(imported(folder))
    (folder / "things.toml").write_text(SPEC, "utf-8")
    items = [{"id": number, HOSTILE: HOSTILE, "updated": HOSTILE} for number in range(3)]
    reply = {"items": items, "next_cursor": HOSTILE, HOSTILE: HOSTILE, "count": HOSTILE}
    (folder / "hostile.json").write_text(json.dumps(reply), "utf-8")
    for name in ("work.db", "data.db"):
        poison(folder / name)
    return Poisoned(folder, ids)


@pytest.fixture
def hostile(place: Place, poisoned_folder: Poisoned) -> dict[str, str]:
    """The ids of the jobs in a copy of the poisoned store."""
    shutil.copytree(poisoned_folder.folder, place.folder, dirs_exist_ok=True)
    return poisoned_folder.ids


async def imported(folder: Path) -> None:
    """A run with bad rows, and one that failed."""
    parts = load_import(folder / "things.toml")
    await parts.sink.open()
    app, handle = import_app(parts, f"sqlite:///{folder}/work.db")
    async with app:
        for run in (f"run-{MARK}", "second"):
            await start_planned(parts, handle, run, await plan_with_history(parts), wall_clock_us())
            await app.run_worker(queues=[parts.queue], until_empty=True)
            await finish_run(parts, run)
            (row,) = await parts.sink.shards.find_all(run)
            await parts.sink.shards.note(run, row.shard.key, row.fence, {MARK: 1}, f"why {MARK}")
        await parts.sink.runs.finish("second", RunState.FAILED, f"why {MARK}")
    await parts.sink.close()


async def filled(folder: Path) -> dict[str, str]:
    limit, budget = Limit(f"limit-{MARK}", "1/hour"), Budget(f"budget-{MARK}", usd=5)
    app = App(f"sqlite:///{folder}/work.db")

    @app.job(name=f"kind-{MARK}", queue=f"q-{MARK}", limits=[limit], budget=budget, cost_usd=1)
    async def limited(text: str) -> None: ...

    @app.job(name=f"plain-{MARK}", queue=f"q-{MARK}")
    async def plain(text: str) -> None: ...

    @app.cron("0 3 * * *", name=f"{MARK}-nightly")
    @app.job(name=f"nightly-{MARK}")
    async def nightly() -> None: ...

    async with app:
        await app.world.limiter.open()
        store = await app.store()
        await app.world.limiter.definitions.declare([limit.definition])
        await app.world.ledger.definitions.declare([budget.definition])
        charge = Charge(budget.definition.name, budget.definition.name)
        await app.world.ledger.hold(f"hold-{MARK}", [(charge, 1_000)], 60_000_000, owner=MARK, dispatch=True)
        await store.schedules.declare(list(app.schedules.values()))
        await app.set_tenant(f"t-{MARK}", concurrency=1)
        failed = await plain.options(tenant=f"t-{MARK}", shard_key=MARK, key=MARK, cursor={MARK: MARK}).submit(
            text=MARK
        )
        worker = WorkerId(f"host-{MARK}:1:abc")
        wants = Wants((f"q-{MARK}",), 1, Token("token"), admits=())
        await app.set_tenant(f"t-{MARK}", weight=2)
        (lease,) = (await store.jobs.exchange(Exchange(worker, wants=wants))).leases
        failure = Failure(f"code-{MARK}", f"message {MARK}\nsecond line {MARK}", f"Traceback {MARK}\n  line {MARK}")
        progress = json.dumps({"done": 1, "total": 2, "message": MARK})
        settled = Settlement(
            id=lease.id, token=lease.token, state=State.FAILED, failure=failure, result=f'"{MARK}"', progress=progress
        )
        await store.jobs.exchange(Exchange(worker, (settled,)))
        waiting = await limited.options(tenant=f"t-{MARK}").submit(text=MARK)
        await plain.submit(text=MARK)
        await store.jobs.exchange(Exchange(worker, wants=Wants((f"q-{MARK}",), 1, Token("other"))))
        assert store.pauses is not None
        await store.pauses.pause(f"q-{MARK}")
        await make(store, KeyRequest(tenant=f"t-{MARK}", role=Role.TENANT, name=MARK), random_text)
        await report_work(store, worker)
    return {"failed": failed.id, "waiting": waiting.id}


async def report_work(store: Store, worker: WorkerId) -> None:
    """A heartbeat, and a row of the history."""
    names = (f"kind-{MARK}",)
    beat = Heartbeat(worker=worker, host=MARK, version=MARK, queues=(f"q-{MARK}",), kinds=names, tenant=f"t-{MARK}")
    await require_workers(store).beat(beat)
    cell = HistoryCell({"started": 2, "done": 1, "failed": 1})
    row = HistoryRow(id=MARK, tenant=f"t-{MARK}", queue=f"q-{MARK}", kind=f"kind-{MARK}", cell=cell)
    await require_history(store).record([row])


def poison(path: Path) -> None:
    """Replace the mark in every text of every table, in JSON as an escape."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA ignore_check_constraints = ON")
        file.create_function("poisoned", 1, poisoned)
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for column in file.execute(f'PRAGMA table_xinfo("{table}")').fetchall():
                if not column[6]:
                    file.execute(f'UPDATE OR REPLACE "{table}" SET "{column[1]}" = poisoned("{column[1]}")')


def poisoned(value: Any) -> Any:
    if not isinstance(value, str) or MARK not in value:
        return value
    try:
        json.loads(value)
    except ValueError:
        return value.replace(MARK, HOSTILE)
    return value.replace(MARK, json.dumps(HOSTILE)[1:-1])


def unsafe(text: str) -> list[str]:
    """The characters that a terminal could obey, except the sequences of leaseway itself."""
    plain = OWN.sub("", text) if os.environ.get("FORCE_COLOR") else text
    return sorted({char for char in plain if not char.isprintable() and char not in "\n\t"})


def obeyed(answer: Answer) -> list[str]:
    forged = FORGED.findall(OWN.sub("", answer.out + answer.err))
    return unsafe(answer.out) + unsafe(answer.err) + forged


MODES = {"plain": {}, "colour": {"FORCE_COLOR": "1"}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("command", READERS)
def test_no_command_prints_a_control_character_or_a_forged_line(
    place: Place, hostile: dict[str, str], command: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command that prints a stored text unchanged is enough."""
    for name, value in MODES[mode].items():
        monkeypatch.setenv(name, value)
    words = [word.replace(MARK, HOSTILE).format(**hostile) for word in READERS[command]]
    holes: list[str] = []
    for more in ([], ["--json"], ["--traceback"]):
        if holes := obeyed(place.run(*command.split(), *words, *more)):
            break
    assert not holes, (command, more)


def test_the_texts_are_printed_at_all(place: Place, hostile: dict[str, str]) -> None:
    """The test above would pass with a store that it did not poison."""
    assert "\\x1b]0;owned" in place.ok("jobs", "show", hostile["failed"]).out
    assert "\\x1b]0;owned" in place.ok("jobs", "why", hostile["waiting"]).out
    assert "\\x1b]0;owned" in place.run("import", "status", "things.toml").out
    shown = json.loads(place.ok("jobs", "show", hostile["failed"], "--json").out)
    assert shown["kind"] == f"plain-{HOSTILE}", "programs get the text unchanged"


@pytest.mark.parametrize("mode", MODES)
def test_a_hostile_spec_is_reported_harmlessly(place: Place, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Specs are copied from elsewhere, and errors repeat their values."""
    for name, value in MODES[mode].items():
        monkeypatch.setenv(name, value)
    text = json.dumps(HOSTILE)
    for old, new in (('"things"', text), ('"things.jsonl"', text), ('"integer"', text), ('"id"', text)):
        (place.folder / "bad.toml").write_text(SPEC.replace(old, new), "utf-8")
        for command in ("plan", "run", "status", "report"):
            assert obeyed(place.run("import", command, "bad.toml")) == []
    (place.folder / "bad.toml").write_text(SPEC + f"{text} = 1\n[{text}]\n", "utf-8")
    assert obeyed(place.run("import", "plan", "bad.toml")) == []


@pytest.mark.parametrize("mode", MODES)
def test_every_function_of_the_output_is_safe(
    mode: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule is in one place: commands cannot forget it."""
    for name, value in MODES[mode].items():
        monkeypatch.setenv(name, value)
    say(HOSTILE)
    say(HOSTILE, "red")
    say(["job ", Styled(HOSTILE, "green")])
    note(HOSTILE)
    print_json({HOSTILE: HOSTILE})
    facts([(HOSTILE, HOSTILE)])
    block(HOSTILE, FOREIGN)
    print_json_line([HOSTILE])
    captured = capsys.readouterr()
    assert unsafe(captured.out + captured.err) == []
    assert FORGED.findall(OWN.sub("", captured.out + captured.err)) == []
    assert json.loads(captured.out.splitlines()[-1]) == [HOSTILE]


def test_only_the_output_prints() -> None:
    """A command that prints by itself would bypass the rule."""
    folder = Path(leaseway.cli.__file__).parent
    forbidden = {"print", "echo", "secho", "confirm", "prompt", "Console", "print_exception", "print_exc"}
    found = []
    for path in folder.rglob("*.py"):
        if "output" in path.parts or path.name == "main.py":  # main.py prints the version, before anything is imported
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                function = node.func
                owner = function.value if isinstance(function, ast.Attribute) else None
                name = getattr(function, "attr", getattr(function, "id", ""))
                is_write = name == "write" and isinstance(owner, ast.Attribute) and owner.attr in ("stdout", "stderr")
                if is_write or (name in forbidden and not (name == "confirm" and owner is None)):
                    found.append(f"{path.relative_to(folder)}:{node.lineno}: {name}")
    assert found == []
