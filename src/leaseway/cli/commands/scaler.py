"""leaseway scaler: KEDA's external scaler over gRPC"""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leaseway.app import App
from leaseway.cli.load_app import load_app
from leaseway.cli.open_limiter import named_limits
from leaseway.cli.open_store import refuse_memory, store_url
from leaseway.cli.options import CliSettings, pass_settings, with_limits
from leaseway.cli.output.console import print_json_line, say
from leaseway.domain.errors import UsageError
from leaseway.domain.redact import redact_url
from leaseway.domain.validators import url_scheme
from leaseway.scaling.pools import PoolSpec, parse_pools

if TYPE_CHECKING:
    from leaseway.keda.server import TlsFiles

LOOPBACK = ("127.0.0.1", "::1", "localhost")
FILE = click.Path(exists=True, dir_okay=False)
END_SECONDS = 5.0


@click.command("scaler")
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8421, show_default=True, help="Port; 0: any free one.")
@click.option(
    "--pool", "pools", multiple=True, metavar="NAME:queues=A+B,slots=20,min=0,max=8",
    help="A pool of workers, as in `leaseway serve`. May be repeated. Default: one pool with all queues of the app.",
)  # fmt: skip
@click.option("--tls-cert", type=FILE, metavar="FILE", help="The server's certificate (PEM).")
@click.option("--tls-key", type=FILE, metavar="FILE", help="The key of this certificate (PEM).")
@click.option(
    "--client-ca", type=FILE, metavar="FILE", help="Answer only clients with a certificate of this authority."
)
@click.option(
    "--no-auth", "auth", is_flag=True, default=True, flag_value=False,
    help="Answer every client that can connect: a network policy must keep others away.",
)  # fmt: skip
@with_limits
@pass_settings
def command(
    settings: CliSettings, /, app: str | None, host: str, port: int, pools: tuple[str, ...], auth: bool, **files: Any
) -> None:
    """Serve KEDA's external scaler over gRPC: how many workers each pool needs.

    It reads the store and writes nothing. Addresses other than loopback require --client-ca, or --no-auth.

    \b
      leaseway scaler shop:app --pool mail:queues=mail+reports,slots=20,min=0,max=10
    """
    tls = read_tls(host, auth, files)
    opened = App() if app is None else load_app(app)
    url = store_url(settings, opened.url)
    refuse_memory(url)
    if url_scheme(url) in ("http", "https"):
        raise UsageError("--store: the scaler reads a database; with a service, use KEDA's metrics-api and /v1/scale")
    opened.move(url, limits=named_limits(settings))
    served = parse_pools(pools, opened.queues())
    asyncio.run(serve(settings, opened, served, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", tls))


def read_tls(host: str, auth: bool, files: dict[str, Any]) -> "TlsFiles | None":
    certificate, key, client_ca = files["tls_cert"], files["tls_key"], files["client_ca"]
    if (certificate is None) != (key is None) or (client_ca is not None and certificate is None):
        raise UsageError("--tls-cert and --tls-key belong together; --client-ca needs both")
    if auth and host not in LOOPBACK and client_ca is None:
        raise UsageError(
            f"--host {host}: clients need certificates there; give --tls-cert, --tls-key and --client-ca, or --no-auth "
            "if a network policy keeps others away"
        )
    try:
        from leaseway.keda.server import TlsFiles
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "grpc":
            raise
        raise UsageError("the scaler needs grpcio; install it with: pip install 'leaseway[keda]'") from None
    if certificate is None:
        return None
    ca = None if client_ca is None else Path(client_ca).read_bytes()
    return TlsFiles(Path(certificate).read_bytes(), Path(key).read_bytes(), ca)


async def serve(
    settings: CliSettings, app: App, pools: tuple[PoolSpec, ...], address: str, tls: "TlsFiles | None"
) -> None:
    from leaseway.keda.scaler import KedaScaler
    from leaseway.keda.server import build_server

    await app.store()
    server, port = build_server(KedaScaler(pools, lambda: app.world), address, tls)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        await server.start()
        announce(settings, app, f"{address.rpartition(':')[0]}:{port}", [pool.name for pool in pools])
        await ended.wait()
    finally:
        await server.stop(END_SECONDS)
        with contextlib.suppress(Exception):
            await app.close()


def announce(settings: CliSettings, app: App, address: str, pools: list[str]) -> None:
    if settings.json:
        print_json_line({"event": "serving", "address": address, "store": redact_url(app.url), "pools": pools})
    else:
        say(f"{redact_url(app.url)}: scaler of {', '.join(pools)} at {address}")
    sys.stdout.flush()
