"""Schemathesis sends everything that the OpenAPI document permits, and much that it does not.

In the suite it sends a small sample: every kind of invalid parameter over SQLite, and random values and chains of calls
over PostgreSQL. With ATTACK_EXAMPLES it sends as many examples per operation as you like, of both kinds over both:

    ATTACK_EXAMPLES=200 ./dev test tests/attacks/test_schema.py
"""

import asyncio
import os
import sys
from collections import defaultdict
from pathlib import Path

import httpx2
import pytest
from tests.api.keys import bearer
from tests.attacks.processes import service

from leaseway import App
from leaseway.domain.identity import KeyRequest, Role
from leaseway.system import random_text
from leaseway.worker.api_keys import MadeKey, make

HERE = Path(__file__).parent
EXAMPLES = int(os.environ.get("ATTACK_EXAMPLES", "0"))
WORDS = {
    "sqlite": ["--phases=coverage", "--exclude-path-regex=^/v1/work/"],
    "postgresql": ["--phases=fuzzing,stateful", "--max-examples=3"],
}
LONG = ["--phases=coverage,fuzzing,stateful", f"--max-examples={EXAMPLES}"]
PREPARED = 10
"""Of a hundred operations, at least this many must have succeeded."""


async def keys_in(store_url: str) -> list[MadeKey]:
    async with App(store_url) as app:
        store = await app.store()
        wanted = [KeyRequest(tenant="ops", role=Role.OPERATOR), KeyRequest(tenant=None, role=Role.WORKER)]
        return [await make(store, each, random_text) for each in wanted]


@pytest.mark.slow
@pytest.mark.timeout(600 if not EXAMPLES else 36_000)
async def test_every_response_matches_the_openapi_document(store_url: str, tmp_path: Path) -> None:
    """No response is a server error (5xx), succeeds without a credential, or has an undocumented schema."""
    operator, worker = await keys_in(store_url)
    asked = tmp_path / "asked"
    told = {"OPERATOR_KEY": operator.text, "WORKER_KEY": worker.text, "ASKED": str(asked)}
    async with service(tmp_path, store_url) as url:
        failures = await schemathesis(url, told, tmp_path, LONG if EXAMPLES else WORDS[store_url.partition(":")[0]])
        assert failures == "", failures
        async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
            description = (await client.get("/v1/openapi.json")).json()
            for made in (operator, worker):
                assert (await client.get("/v1/work/wait?seconds=0", headers=bearer(made))).status_code in (200, 403)
    check_that_it_asked(asked, sum(len(methods) for methods in description["paths"].values()))


async def schemathesis(url: str, told: dict[str, str], place: Path, words: list[str]) -> str:
    """The failures that Schemathesis reports. In a process of its own, because it changes the process in which
    it runs.
    """
    command = [str(Path(sys.executable).with_name("st")), f"--config-file={HERE / 'schemathesis.toml'}", "run"]
    process = await asyncio.create_subprocess_exec(
        *command, f"{url}/v1/openapi.json", "--seed=1", *words, cwd=place,
        env={**os.environ, **told, "PYTHONPATH": str(HERE.parent.parent)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode() if process.returncode else ""


def check_that_it_asked(asked: Path, described: int) -> None:
    """A run in which every request is refused proves nothing."""
    statuses: dict[str, set[int]] = defaultdict(set)
    for line in asked.read_text().splitlines():
        status, _, operation = line.partition(" ")
        statuses[operation].add(int(status))
    assert len(statuses) > described / 3
    # An invalid credential is one of the mistakes, and with few examples it may be the only one.
    refused = [name for name, found in statuses.items() if found <= {401, 403}]
    assert len(refused) < len(statuses) / 10, refused
    fine = [name for name, found in statuses.items() if any(status < 300 for status in found)]
    assert len(fine) > len(statuses) * PREPARED / 100
