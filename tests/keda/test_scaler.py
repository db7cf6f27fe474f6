"""KEDA's external scaler, asked by a gRPC client whose messages Google's protobuf encodes."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.keda.certificates import issue
from tests.sqlite_files import open_sqlite

from leaseway import App, Limit
from leaseway.cli.main import main
from leaseway.domain.errors import TransientError
from leaseway.keda.messages import BadMessage, parse_metrics_request, parse_ref
from leaseway.keda.scaler import METRIC, KedaScaler
from leaseway.keda.server import TlsFiles, build_server
from leaseway.scaling.pools import parse_pools

PROTO = descriptor_pb2.FieldDescriptorProto
TEXT, NUMBER, FLAG, FLOAT, MESSAGE = PROTO.TYPE_STRING, PROTO.TYPE_INT64, PROTO.TYPE_BOOL, PROTO.TYPE_DOUBLE, 11
MESSAGES: dict[str, list[tuple[str, int, int, str | None, bool]]] = {
    "Entry": [("key", 1, TEXT, None, False), ("value", 2, TEXT, None, False)],
    "ScaledObjectRef": [("name", 1, TEXT, None, False), ("namespace", 2, TEXT, None, False),
                        ("scalerMetadata", 3, MESSAGE, "Entry", True)],
    "IsActiveResponse": [("result", 1, FLAG, None, False)],
    "MetricSpec": [("metricName", 1, TEXT, None, False), ("targetSize", 2, NUMBER, None, False),
                   ("targetSizeFloat", 3, FLOAT, None, False)],
    "GetMetricSpecResponse": [("metricSpecs", 1, MESSAGE, "MetricSpec", True)],
    "GetMetricsRequest": [("scaledObjectRef", 1, MESSAGE, "ScaledObjectRef", False),
                          ("metricName", 2, TEXT, None, False)],
    "MetricValue": [("metricName", 1, TEXT, None, False), ("metricValue", 2, NUMBER, None, False),
                    ("metricValueFloat", 3, FLOAT, None, False)],
    "GetMetricsResponse": [("metricValues", 1, MESSAGE, "MetricValue", True)],
    "Health": [("service", 1, TEXT, None, False)],
    "HealthStatus": [("status", 1, NUMBER, None, False)],
}  # fmt: skip
"""KEDA's documented messages: name, number, type, type of a message, repeated. A map is a repeated entry."""


def build_messages() -> SimpleNamespace:
    file = descriptor_pb2.FileDescriptorProto(name="externalscaler.proto", package="externalscaler", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, type_, of, is_repeated in fields:
            label = PROTO.LABEL_REPEATED if is_repeated else PROTO.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, type=type_, label=label)
            if of is not None:
                added.type_name = f".externalscaler.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"externalscaler.{name}") for name in MESSAGES}
    return SimpleNamespace(**{name: message_factory.GetMessageClass(each) for name, each in found.items()})


PB = build_messages()
SERVICE = "/externalscaler.ExternalScaler"


class Client:
    """What KEDA calls."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def ref(self, **metadata: str) -> Any:
        entries = [PB.Entry(key=key, value=value) for key, value in metadata.items()]
        return PB.ScaledObjectRef(name="mail-workers", namespace="shop", scalerMetadata=entries)

    async def ask(self, method: str, request: Any, reply: Any) -> Any:
        call = self.channel.unary_unary(
            method, request_serializer=lambda each: each.SerializeToString(), response_deserializer=reply.FromString
        )
        return await call(request, timeout=20)

    async def is_active(self, **metadata: str) -> bool:
        reply = await self.ask(f"{SERVICE}/IsActive", self.ref(**metadata), PB.IsActiveResponse)
        return bool(reply.result)

    async def workers(self, **metadata: str) -> tuple[str, int, float]:
        request = PB.GetMetricsRequest(scaledObjectRef=self.ref(**metadata), metricName=METRIC)
        (value,) = (await self.ask(f"{SERVICE}/GetMetrics", request, PB.GetMetricsResponse)).metricValues
        return value.metricName, value.metricValue, value.metricValueFloat

    def stream(self, **metadata: str) -> Any:
        call = self.channel.unary_stream(
            f"{SERVICE}/StreamIsActive", request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=PB.IsActiveResponse.FromString,
        )  # fmt: skip
        return call(self.ref(**metadata))

    async def health(self, service: str = "") -> int:
        reply = await self.ask("/grpc.health.v1.Health/Check", PB.Health(service=service), PB.HealthStatus)
        return int(reply.status)


@asynccontextmanager
async def served(app: App, *pools: str, tls: TlsFiles | None = None) -> AsyncIterator[tuple[Client, int]]:
    await app.store()
    specs = parse_pools(pools, app.queues())
    server, port = build_server(KedaScaler(specs, lambda: app.world), "127.0.0.1:0", tls)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Client(channel), port
    finally:
        await server.stop(0)


def shop(*limits: Limit) -> Any:
    app = App("memory://")

    @app.job(limits=limits, queue="mail")
    async def send(n: int) -> None: ...

    return app, send


async def test_keda_learns_how_many_workers_the_limit_can_feed() -> None:
    """A backlog of 500 behind a limit of one per second needs one worker, not fifty."""
    app, send = shop(Limit("maps", "60/minute", burst=0))
    async with served(app, "mail:slots=2,max=50") as (client, _):
        assert not await client.is_active()
        assert await client.workers() == (METRIC, 0, 0.0)
        await app.world.limiter.definitions.declare([each.limit.definition for each in send.kind.requirements.uses])
        await send.submit_many([{"n": n} for n in range(500)])
        assert await client.is_active()
        assert await client.workers() == (METRIC, 1, 1.0)
        spec = await client.ask(f"{SERVICE}/GetMetricSpec", client.ref(), PB.GetMetricSpecResponse)
        assert [(each.metricName, each.targetSize, each.targetSizeFloat) for each in spec.metricSpecs] == [
            (METRIC, 1, 1.0)
        ]


async def test_the_trigger_names_the_pool() -> None:
    """A misspelled pool must not read as one that needs no workers."""
    app, send = shop()
    await send.submit(n=1)
    async with served(app, "mail:max=5", "reports:max=5") as (client, _):
        assert await client.is_active(pool="mail")
        assert not await client.is_active(pool="reports")
        for metadata in ({"pool": "mial"}, {}):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.workers(**metadata)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "set it in the trigger's metadata to: mail, reports" in str(caught.value.details())


async def test_a_stale_pool_is_an_error_and_never_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zero would end every worker because a database restarts. UNAVAILABLE lets KEDA keep what runs."""
    app, send = shop()
    await send.submit(n=1)
    async with served(app, "mail:max=5") as (client, _):
        await take_store_away(app, monkeypatch)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.workers()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "pool mail cannot be observed now"
        assert (await client.health(), await client.health("liveness")) == (2, 1)


async def take_store_away(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone() -> None:
        raise TransientError("the store is gone")

    monkeypatch.setattr(app.world.store.reads, "now", gone)
    monkeypatch.setattr(app.world.store.reads, "lanes", gone)


async def test_the_stream_tells_the_state_at_once_and_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """KEDA's push trigger starts the first worker without waiting for its poll; repetitions would only be noise."""
    monkeypatch.setattr("leaseway.keda.scaler.STREAM_SECONDS", 0.02)
    app, send = shop()
    async with served(app, "mail:max=5") as (client, _):
        assert await client.health() == 1
        stream = client.stream()
        assert not (await asyncio.wait_for(stream.read(), 20)).result
        await send.submit(n=1)
        assert (await asyncio.wait_for(stream.read(), 20)).result
        stream.cancel()


async def test_bytes_that_are_no_message_are_refused() -> None:
    """Port scanners and other versions must not end the server, and must not read as an inactive pool."""
    app, _ = shop()
    async with served(app) as (client, _):
        call = client.channel.unary_unary(f"{SERVICE}/IsActive")
        for data in (b"\x0a\xff", b"\xff" * 12, b"\x08\x01\x0a\x02\xff\xfe", b"\x0f", b"\x1a\x02\x08"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(data, timeout=20)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.channel.unary_stream(f"{SERVICE}/StreamMetricSpec")(b"").read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, "KEDA then polls GetMetricSpec"


def test_messages_of_later_versions_are_read() -> None:
    """KEDA may add fields. They are skipped, whatever their type is."""
    later = b"\x20\x05" + b"\x29" + b"\0" * 8 + b"\x35" + b"\0" * 4 + b"\x3a\x01x"
    known = PB.ScaledObjectRef(name="n", namespace="s", scalerMetadata=[PB.Entry(key="pool", value="mail")])
    ref = parse_ref(known.SerializeToString() + later)
    assert (ref.name, ref.namespace, dict(ref.metadata)) == ("n", "s", {"pool": "mail"})
    request = PB.GetMetricsRequest(scaledObjectRef=known, metricName="ä").SerializeToString()
    assert parse_metrics_request(request + later).metric == "ä"
    with pytest.raises(BadMessage):
        parse_metrics_request(request[:-1])


async def test_a_client_without_a_certificate_of_the_authority_is_not_answered(tmp_path: Path) -> None:
    """The load of all tenants is nobody else's business, and a port in a cluster is open to every pod."""
    ours, theirs = issue("ours"), issue("theirs")
    tls = TlsFiles(ours.certificate, ours.key, ours.authority)
    app, _ = shop()
    async with served(app, tls=tls) as (_, port):
        for identity, is_answered in ((ours, True), (theirs, False), (None, False)):
            credentials = grpc.ssl_channel_credentials(
                ours.authority, *(() if identity is None else (identity.key, identity.certificate))
            )
            async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
                if is_answered:
                    assert not await Client(channel).is_active()
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await Client(channel).is_active()
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


# -- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0: clients need certificates there; give --tls-cert"),
        (["--tls-cert", "x.pem"], "--tls-cert and --tls-key belong together"),
        (["--pool", "mail:min=5,max=2"], "min: must not exceed max (is 5, max is 2)"),
        (["--pool", "mail:slots=0"], "pool mail: slots: must be"),
        (["--store", "https://jobs.example"], "the scaler reads a database; with a service, use KEDA's metrics-api"),
        (["--tls-cert", "x.pem", "--tls-key", "x.pem"], "cannot listen on 127.0.0.1:0"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """An open port without authentication is never the result of a forgotten option."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEWAY_KEY", "lw_x")
    Path("x.pem").write_text("not a certificate")
    assert main(["scaler", "--port", "0", *arguments]) == 2
    assert problem in capsys.readouterr().err


async def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    """The manifest runs this command; SIGTERM is how Kubernetes ends it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "leaseway.cli", "scaler", "--port", "0", "--json", "--store", "sqlite:///work.db",
        cwd=tmp_path, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        told = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        assert told["pools"] == ["default"]
        async with grpc.aio.insecure_channel(told["address"]) as channel:
            assert await Client(channel).workers() == (METRIC, 0, 0.0)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    with open_sqlite(tmp_path / "work.db") as store:
        assert store.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
