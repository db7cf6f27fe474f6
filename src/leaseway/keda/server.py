"""The gRPC server of the external scaler, with TLS and the standard health check."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

import grpc
import grpc.aio

from leaseway.domain.errors import BadValue, LeasewayError, TransientError, UsageError
from leaseway.keda.messages import BadMessage, encode_number, parse_health_service, parse_metrics_request, parse_ref
from leaseway.keda.scaler import KedaScaler

SERVICE, HEALTH = "externalscaler.ExternalScaler", "grpc.health.v1.Health"
LIVENESS = "liveness"
SERVING, NOT_SERVING = 1, 2
STREAMS_MAX = 1_000
MESSAGE_BYTES_MAX = 65_536
Q = TypeVar("Q")


class TlsFiles(NamedTuple):
    """Contents of PEM files. With `client_ca`, only clients with a certificate of this authority are answered."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


def build_server(scaler: KedaScaler, address: str, tls: TlsFiles | None) -> tuple[grpc.aio.Server, int]:
    """The server, not started, and its port. Raises `UsageError` if it cannot listen there."""
    options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=STREAMS_MAX)
    server.add_generic_rpc_handlers((scaler_calls(scaler), health_calls(scaler)))
    try:
        if tls is None:
            return server, server.add_insecure_port(address)
        credentials = grpc.ssl_server_credentials(
            [(tls.key, tls.certificate)], tls.client_ca, require_client_auth=tls.client_ca is not None
        )
        return server, server.add_secure_port(address, credentials)
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"cannot listen on {address}: {error}; check the address and the files of --tls-*") from error


def scaler_calls(scaler: KedaScaler) -> grpc.GenericRpcHandler:
    unary = grpc.unary_unary_rpc_method_handler
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "IsActive": unary(answer(parse_ref, scaler.is_active)),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(answer_stream(scaler)),
            "GetMetricSpec": unary(answer(parse_ref, scaler.metric_spec)),
            "GetMetrics": unary(answer(parse_metrics_request, scaler.metrics)),
        },
    )


def answer(parse: Callable[[bytes], Q], call: Callable[[Q], Awaitable[bytes]]) -> Any:
    """Messages are parsed here and not by gRPC, so that a bad one is answered with INVALID_ARGUMENT."""

    async def reply(data: bytes, context: Any) -> bytes:
        try:
            return await call(parse(data))
        except (BadMessage, LeasewayError) as error:
            await refuse(context, error)

    return reply


def answer_stream(scaler: KedaScaler) -> Any:
    async def reply(data: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            async for message in scaler.stream_is_active(parse_ref(data)):
                yield message
        except (BadMessage, LeasewayError) as error:
            await refuse(context, error)

    return reply


async def refuse(context: Any, error: Exception) -> NoReturn:
    if isinstance(error, TransientError):
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    if isinstance(error, BadMessage | UsageError | BadValue):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    await context.abort(grpc.StatusCode.INTERNAL, "the pool cannot be observed; see the log of the scaler")
    raise AssertionError("abort raises")


def health_calls(scaler: KedaScaler) -> grpc.GenericRpcHandler:
    """What the `grpc` probes of Kubernetes ask. "liveness" serves while the process runs; everything else serves while
    the store responds."""

    async def check(data: bytes, context: Any) -> bytes:
        try:
            service = parse_health_service(data)
        except BadMessage as error:
            await refuse(context, error)
        is_serving = service == LIVENESS or await scaler.check()
        return encode_number(1, SERVING if is_serving else NOT_SERVING)

    return grpc.method_handlers_generic_handler(HEALTH, {"Check": grpc.unary_unary_rpc_method_handler(check)})
