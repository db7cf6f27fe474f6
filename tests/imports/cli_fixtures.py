"""A folder with a spec, a file of records, a sink, and a command line that runs there."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli.place import Answer
from tests.imports.apps import import_app

from leaseway.cli.main import main
from leaseway.imports.domain.partition import Shard
from leaseway.imports.domain.run_state import RunState
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import plan_with_history
from leaseway.imports.run.start import start_planned
from leaseway.system import wall_clock_us

SPEC = """
version = 1
[source]
name = "things"
file = "things.jsonl"
[resource]
key = "id"
page = { cursor = "none", limit = 100 }
MORE
[resource.columns]
size = { path = "size", type = "integer" }
[sink]
url = "sqlite:///data.db"
table = "things"
"""
STAMPED = 'stamp = { field = "changed" }'

Records = Sequence[Any]
"""Write records, or raw lines that are not valid records."""


class Desk:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.spec = folder / "things.toml"
        self._capsys = capsys
        self.write_spec()
        self.write([])

    def write_spec(self, more: str = "", old: str = "", new: str = "") -> None:
        text = SPEC.replace('page = { cursor = "none", limit = 100 }\nMORE', more)
        self.spec.write_text(text.replace(old, new) if old else text, "utf-8")

    def write(self, records: Records) -> None:
        lines = [line if isinstance(line, str) else json.dumps(line) for line in records]
        (self.folder / "things.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def imported(self, run: str, records: Records | None = None, **options: Any) -> RunState:
        """Run the import with one worker in this process."""
        if records is not None:
            self.write(records)
        return asyncio.run(self._imported(run, **options))

    async def _imported(self, run: str, shards: Sequence[Shard] | None = None, **options: Any) -> RunState:
        parts = load_import(self.spec)
        await parts.sink.open()
        app, handle = import_app(parts, "sqlite:///jobs.db")
        try:
            async with app:
                await start_planned(
                    parts, handle, run, shards or await plan_with_history(parts), wall_clock_us(), **options
                )
                await app.run_worker(queues=[parts.queue], until_empty=True)
                return await finish_run(parts, run)
        finally:
            await parts.sink.close()

    def run(self, *argv: str) -> Answer:
        """Run the command in this process. No command may end in a traceback."""
        self._capsys.readouterr()
        code = main(["import", *argv])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err, err
        return Answer(code, out, err)

    def ok(self, *argv: str) -> Answer:
        answer = self.run(*argv)
        assert answer.code == 0, answer.err
        return answer


def things(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"id": number, "size": number, **fields} for number in range(1, count + 1)]


def at_desk(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    monkeypatch.chdir(folder)
    for name in ("LEASEWAY_LIMITS", "LEASEWAY_TRACEBACK", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LEASEWAY_STORE", "sqlite:///jobs.db")
    monkeypatch.setenv("COLUMNS", "100")
    return Desk(folder, capsys)
