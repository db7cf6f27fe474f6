"""The manifests in examples/deploy agree with the program and with each other."""

import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from leaseway.api.app import build_app
from leaseway.api.routes.metrics import pool_families
from leaseway.api.schemas.scaling import ScaleDocument
from leaseway.api.settings import ServiceSettings
from leaseway.app import App
from leaseway.cli.main import root
from leaseway.keda.scaler import POOL
from leaseway.scaling.pools import parse_pool, parse_scaling

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
RELEASE_SECONDS = 20
"""What a worker may need after its grace period."""


def parse_command(arguments: list[str]) -> dict[str, Any]:
    """The options as the program reads them. It refuses what it does not know."""
    # With the settings of the program: a command remembers the first names of its help option.
    above = click.Context(root, **root.context_settings)
    command = root.get_command(above, arguments[0])
    assert command is not None
    # Files of the image do not exist here.
    for option in command.params:
        if isinstance(option.type, click.Path):
            option.type = click.Path()
    return command.make_context(arguments[0], list(arguments[1:]), parent=above).params


def objects(name: str) -> dict[str, dict[str, Any]]:
    """By kind and name."""
    found = [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]
    return {f"{each['kind']} {each['metadata']['name']}": each for each in found}


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    assert found["command"] == ["leaseway"]
    return dict(found)


def test_the_workers_of_kubernetes_are_those_of_the_pool() -> None:
    """A pool with other slots or queues than its workers gets a number of workers that does not fit."""
    found = objects("kubernetes.yaml")
    serve = parse_command(container(found["Deployment leaseway"])["args"])
    work = parse_command(container(found["Deployment mail-workers"])["args"])
    (pool,) = map(parse_pool, serve["pools"])
    assert (pool.queues, pool.slots) == (work["queues"], work["concurrency"])
    scaled = found["ScaledObject mail-workers"]["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (
        pool.settings.workers_min, pool.settings.workers_max
    )  # fmt: skip
    (trigger,) = scaled["triggers"]
    host, path = trigger["metadata"]["url"].removeprefix("http://").split("/", 1)
    assert host == f"{found['Service leaseway']['metadata']['name']}:{serve['port']}"
    assert path == f"v1/scale/{pool.name}"
    assert trigger["metadata"]["valueLocation"] in ScaleDocument.__struct_fields__


def test_the_probes_ask_routes_that_exist() -> None:
    """A probe of a path that does not exist restarts the service for ever."""
    served = container(objects("kubernetes.yaml")["Deployment leaseway"])
    paths = build_app(App("memory://"), ServiceSettings(auth=False)).openapi()["paths"]
    assert {served[f"{each}Probe"]["httpGet"]["path"] for each in ("liveness", "readiness")} <= set(paths)


@pytest.mark.parametrize("name", ["kubernetes", "compose"])
def test_the_probe_of_a_worker_is_a_command_that_exists(name: str) -> None:
    """A probe that is refused as wrong usage would restart every worker for ever."""
    if name == "kubernetes":
        workers = container(objects("kubernetes.yaml")["Deployment mail-workers"])
        command = workers["livenessProbe"]["exec"]["command"]
        assert "LEASEWAY_STORE" in {each["name"] for each in workers["env"]}
    else:
        service = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["work"]
        mark, *command = service["healthcheck"]["test"]
        assert mark == "CMD"
        assert "LEASEWAY_STORE" in service["environment"]
    program, group, *arguments = command
    above = click.Context(root, **root.context_settings)
    found = root.get_command(above, group)
    assert program == "leaseway"
    assert isinstance(found, click.Group)
    _, checked, rest = found.resolve_command(above, arguments)
    assert checked is not None
    checked.make_context("check", rest, parent=above)


def test_the_hpa_follows_the_gauge_that_is_served() -> None:
    """An HPA with a misspelled metric never changes anything, and says so only in its events."""
    (metric,) = objects("hpa.yaml")["HorizontalPodAutoscaler mail-workers"]["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] in {family.name for family in pool_families({})}


def test_the_external_scaler_serves_the_pool_of_its_workers() -> None:
    """The trigger finds its scaler and its pool by names that nothing else checks."""
    found = objects("keda-external.yaml")
    serve = parse_command(container(found["Deployment leaseway-scaler"])["args"])
    above = parse_command(container(objects("kubernetes.yaml")["Deployment leaseway"])["args"])
    assert serve["pools"] == above["pools"]
    (pool,) = map(parse_pool, serve["pools"])
    scaled = found["ScaledObject mail-workers"]["spec"]
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"][POOL] == pool.name
    assert (
        trigger["metadata"]["scalerAddress"]
        == f"{found['Service leaseway-scaler']['metadata']['name']}:{serve['port']}"
    )
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (
        pool.settings.workers_min, pool.settings.workers_max
    )  # fmt: skip
    mounted = {mount["mountPath"] for mount in container(found["Deployment leaseway-scaler"])["volumeMounts"]}
    assert {str(Path(serve[name]).parent) for name in ("tls_cert", "tls_key", "client_ca")} == mounted


def test_the_image_starts_the_program_that_the_manifests_name() -> None:
    """Kubernetes replaces the entry point by `command`; a shell in between would swallow SIGTERM."""
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    assert 'ENTRYPOINT ["leaseway"]' in lines
    extras = next(line for line in lines if "pip install" in line).partition("[")[2].partition("]")[0].split(",")
    known = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) <= set(known)


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


@pytest.mark.parametrize("name", ["kubernetes", "systemd", "compose"])
def test_a_worker_is_given_the_time_to_end(name: str) -> None:
    """Otherwise the end of a pod is a kill, and its jobs wait for their leases to expire."""
    if name == "kubernetes":
        workers = objects("kubernetes.yaml")["Deployment mail-workers"]
        arguments = container(workers)["args"]
        given = float(workers["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
    elif name == "systemd":
        unit = dict(
            line.split("=", 1) for line in (FOLDER / "leaseway-fleet.service").read_text().splitlines() if "=" in line
        )
        arguments, given = unit["ExecStart"].split()[1:], float(unit["TimeoutStopSec"])
        assert unit["KillMode"] == "mixed", "systemd would signal the workers beside the fleet"
    else:
        service = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["work"]
        arguments, given = service["command"][1:], seconds(service["stop_grace_period"])
    options = parse_command(arguments)
    assert given >= options["grace"] + RELEASE_SECONDS
    if options["fleet"] is not None:
        parse_scaling("fleet", options["fleet"])
