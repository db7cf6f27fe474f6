"""leaseway serve"""

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from leaseway.app import App
from leaseway.cli.load_app import load_app
from leaseway.cli.open_limiter import named_limits
from leaseway.cli.open_store import refuse_memory, store_url
from leaseway.cli.options import CliSettings, pass_settings, with_limits
from leaseway.cli.output.console import note, print_json_line, say
from leaseway.cli.output.work_log import log_to_stderr
from leaseway.domain.errors import UsageError
from leaseway.domain.quota import DEFAULT_QUOTAS, parse_quotas
from leaseway.domain.redact import redact_url

if TYPE_CHECKING:
    from leaseway.api.settings import ServiceSettings


@click.command("serve")
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Addresses other than loopback require keys.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8420,
    show_default=True,
    help="Port to listen on; 0 picks any free one.",
)
@click.option(
    "--no-auth",
    "auth",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Disable authentication: anyone who connects has full access.",
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="A host name of the service. May be repeated."
)
@click.option("--issuer", metavar="URL", help="Also accept JWTs of this issuer; with --audience and --jwks-url.")
@click.option("--audience", metavar="TEXT", help="Required audience of the JWTs.")
@click.option("--jwks-url", metavar="URL", help="URL of the issuer's public keys (JWKS).")
@click.option("--tenant-claim", default="tenant", show_default=True, help="The claim of a JWT that names the tenant.")
@click.option(
    "--requests-per-minute", type=click.IntRange(min=1), default=6_000, show_default=True, help="Of one tenant."
)
@click.option("--requests-at-once", type=click.IntRange(min=1), default=200, show_default=True, help="Of one tenant.")
@click.option(
    "--worker-requests-per-minute", type=click.IntRange(min=1), default=30_000, show_default=True,
    help="Of the workers of one tenant, if they have keys of that tenant.",
)  # fmt: skip
@click.option(
    "--worker-requests-at-once", type=click.IntRange(min=1), default=1_000, show_default=True,
    help="Of the workers of one tenant. A worker that waits for work has one in progress.",
)  # fmt: skip
@click.option(
    "--quota", "quotas", multiple=True, metavar="NAME=N",
    help="Default quota of tenants: lanes, unfinished (jobs), bytes or keys; NAME=none: unlimited. May be repeated.",
)  # fmt: skip
@click.option(
    "--imports", type=click.Path(exists=True, file_okay=False), metavar="FOLDER",
    help="Serve the imports whose specs (.toml) are in this folder.",
)  # fmt: skip
@click.option(
    "--pool", "pools", multiple=True, metavar="NAME:queues=A+B,slots=20,min=0,max=8",
    help="A pool of workers for /v1/scale: queues that one fleet serves, jobs per worker, and bounds. May be repeated. "
    "Default: one pool, `default`, with all queues of the app.",
)  # fmt: skip
@click.option("--quiet", is_flag=True, help="Log warnings and errors only.")
@click.option("--verbose", is_flag=True, help="Log every event.")
@with_limits
@pass_settings
def command(settings: CliSettings, /, app: str | None, quiet: bool, verbose: bool, **wanted: Any) -> None:
    """Serve the HTTP API and the dashboard for a store.

    With MODULE:APP, the arguments of submitted jobs are checked against its functions, and their limits and budgets are
    known. Without it, every kind is accepted, and the workers that run it check the arguments.

    The first SIGTERM or Ctrl-C lets requests finish, the second stops at once.

    \b
      leaseway serve --no-auth                  on this machine, to try it
      leaseway serve tasks:app                  with keys: leaseway keys create --help
      leaseway serve tasks:app --host 0.0.0.0 --allow-host jobs.example.org
    """
    serve(settings, ServeOptions(app=app, quiet=quiet, verbose=verbose, options=wanted))


SECRET = "LEASEWAY_SECRET"
"""Signs list cursors; processes that share it accept each other's cursors."""
EXTRA = ("fastapi", "starlette", "uvicorn", "httptools", "websockets", "jwt", "cryptography")
WHY = {
    errno.EADDRINUSE: "the port is in use; choose another --port, or --port 0 for any free one",
    errno.EACCES: "permission denied; choose a --port above 1023",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose another --host",
}


class ServeOptions(NamedTuple):
    app: str | None
    quiet: bool
    verbose: bool
    options: dict[str, Any]
    """Fields of `ServiceSettings`."""


def serve(settings: CliSettings, wanted: ServeOptions) -> None:
    service_settings = build_service_settings(wanted)
    app = App() if wanted.app is None else load_app(wanted.app)
    url = store_url(settings, app.url)
    refuse_memory(url)
    app.move(url, limits=named_limits(settings))
    settings.json = log_to_stderr(settings.json, quiet=wanted.quiet, verbose=wanted.verbose)
    listening = listen(service_settings.host, service_settings.port)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve_until_stopped(settings, app, service_settings, listening))


def build_service_settings(wanted: ServeOptions) -> "ServiceSettings":
    try:
        import leaseway.api.server  # noqa: F401 - brings all that is needed
        from leaseway.api.auth.origin_checks import is_loopback
        from leaseway.api.settings import ServiceSettings
        from leaseway.scaling.pools import parse_pools
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRA:
            raise
        raise UsageError("the service needs extra packages; install them with: pip install 'leaseway[serve]'") from None
    secret = os.environ.get(SECRET, "").encode()
    quotas = parse_quotas(wanted.options["quotas"]).with_defaults(DEFAULT_QUOTAS)
    pools = parse_pools(wanted.options["pools"], ()) if wanted.options["pools"] else ()
    given = ServiceSettings(**wanted.options | {"quotas": quotas, "pools": pools}, cursor_secret=secret)
    if not given.auth and not is_loopback(given.host):
        raise UsageError(
            f"--no-auth on {given.host}: anyone who connects would have full access; omit --no-auth and create keys "
            "(leaseway keys create), or listen on 127.0.0.1"
        )
    return given


def listen(host: str, port: int) -> socket.socket:
    from leaseway.api.server import bind_socket

    try:
        return bind_socket(host, port)
    except OSError as error:
        why = WHY.get(error.errno or 0, error.strerror or str(error))
        raise UsageError(f"cannot listen on {host}, port {port}: {why}") from error


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def serve_until_stopped(
    settings: CliSettings, app: App, service_settings: "ServiceSettings", listening: socket.socket
) -> None:
    from leaseway.api.app import build_app
    from leaseway.api.server import Server, socket_url
    from leaseway.system import freeze_loaded_objects

    api = build_app(app, service_settings)
    # Opened here and not by the server, so that a problem with the store is reported as by other commands.
    try:
        await api.state.service.open()
        freeze_loaded_objects()
        tell = partial(announce, settings, socket_url(listening), app, service_settings)
        await Server(api, lifespan=False, started=tell).serve([listening])
    finally:
        listening.close()
        await api.state.service.close()


def announce(settings: CliSettings, address: str, app: App, service_settings: "ServiceSettings") -> None:
    if settings.json:
        print_json_line(
            {"event": "serving", "url": address, "store": redact_url(app.url), "auth": service_settings.auth}
        )
    else:
        announce_to_people(address, app, service_settings)
    sys.stdout.flush()  # the caller that started the process waits for the URL, mostly at the end of a pipe


def announce_to_people(address: str, app: App, service_settings: "ServiceSettings") -> None:
    say(f"{redact_url(app.url)} is served at {address}")
    if service_settings.auth:
        # Without --store, `keys` would use the default store instead of this one.
        elsewhere = "" if store_url(CliSettings()) == app.url else f" --store {quote(redact_url(app.url))}"
        note(f"Requests need a key. Create the first one: leaseway keys create --role operator{elsewhere}")
    else:
        note("Authentication is off: anyone on this machine has full access.")
