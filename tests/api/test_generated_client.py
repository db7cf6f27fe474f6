"""Client generators and linters accept the OpenAPI document, and a generated client works.

A document that only this project's tests read drifts from what the tools of users understand.
"""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.reference import openapi_document
from tests.api.running_service import Served
from tests.npm_packages import install_locked, node

TOOL_SECONDS_MAX = 100
SPECTRAL = Path(__file__).parent / "spectral"
PACKAGE = "generated_leaseway_client"


@pytest.fixture(scope="module")
def document_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("openapi") / "openapi.json"
    path.write_text(json.dumps(openapi_document()), "utf-8")
    return path


@pytest.fixture(scope="module")
def generated(document_file: Path) -> str:
    """What openapi-python-client prints. The package is beside the document."""
    generator = Path(sys.executable).with_name("openapi-python-client")
    command = [str(generator), "generate", "--path", str(document_file), "--meta", "none"]
    # Its formatter is not needed here.
    config = document_file.with_name("config.yml")
    config.write_text("post_hooks: []\n")
    command += ["--config", str(config), "--output-path", str(document_file.with_name(PACKAGE))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS_MAX, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


class ClientPackage:
    """The generated package. mypy does not see its modules."""

    def load(self, module: str) -> Any:
        return importlib.import_module(f"{PACKAGE}.{module}")

    def connect(self, served: Served) -> Any:
        return self.load("client").Client(base_url=served.url)


@pytest.fixture
def client_package(generated: str, document_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClientPackage]:
    monkeypatch.syspath_prepend(str(document_file.parent))
    yield ClientPackage()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_a_client_is_generated_from_the_whole_document(generated: str) -> None:
    """A generator that does not understand a schema leaves the route out and only warns."""
    assert "WARNING" not in generated.upper()
    assert len(generated.splitlines()) == 1, generated


async def test_a_generated_client_submits_and_reads_jobs(served: Served, client_package: ClientPackage) -> None:
    """Generated code checks the names and types of the document against what the service really sends."""
    models = client_package.load("models")
    post_jobs, get_jobs, get_job = (
        client_package.load(f"api.jobs.{name}") for name in ("post_jobs", "get_jobs", "get_jobs_id")
    )
    body = models.Submission.from_dict({"kind": "add", "arguments": {"a": 1}})
    async with client_package.connect(served) as client:
        submitted = await post_jobs.asyncio(client=client, body=body, idempotency_key="once")
        again = await post_jobs.asyncio(client=client, body=body, idempotency_key="once")
        assert submitted.id == again.id
        await served.settle()
        shown = await get_job.asyncio(submitted.id, client=client)
        assert (shown.kind, shown.state) == ("add", models.State.DONE)
        page = await get_jobs.asyncio(client=client, kind="add")
        assert [job.id for job in page.items] == [submitted.id]
        missing = await get_job.asyncio("0" * 26, client=client)
        assert (type(missing), missing.code) == (models.Problem, "not_found")


async def test_a_generated_client_works_with_tuples(served: Served, client_package: ClientPackage) -> None:
    """The worker protocol sends tuples, which generators support in one form only."""
    await served.client.put("/v1/limits/maps", json={"rates": ["100/minute"]})
    list_limits = client_package.load("api.work.post_work_limits_list")
    async with client_package.connect(served) as client:
        reply = await list_limits.asyncio(client=client, body=client_package.load("models").WorkEmptyRequest())
    ((definition, _),) = reply.value
    assert definition.name == "maps"


def test_spectral_has_no_findings(document_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Teams lint the documents of the services that they depend on. Warnings count as well."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(text)

    spectral = install_locked(SPECTRAL, say) / ".bin" / "spectral"
    rules = document_file.with_name("rules.yaml")
    rules.write_text("extends: [spectral:oas]\n")
    command = [str(node()), str(spectral), "lint", "--fail-severity=hint", f"--ruleset={rules}", str(document_file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS_MAX, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
