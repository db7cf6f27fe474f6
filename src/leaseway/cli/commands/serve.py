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
from leaseway.cli.options import pass_settings, with_limits
from leaseway.cli.output.json import line
from leaseway.cli.output.text import note, say
from leaseway.cli.output.work_log import log_to_stderr
from leaseway.cli.settings import CliSettings
from leaseway.domain.errors import UsageError, redact_url

if TYPE_CHECKING:
    from leaseway.api.settings import ServiceSettings


@click.command("serve")
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where to listen. Others than the loopback need keys."
)
@click.option("--port", type=click.IntRange(0, 65_535), default=8420, show_default=True, help="0 takes any free one.")
@click.option(
    "--no-auth", "auth", is_flag=True, default=True, flag_value=False, help="Whoever reaches it may do everything."
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="A name under which it is reached. May be repeated."
)
@click.option("--issuer", metavar="URL", help="Take JWTs of this issuer, too; with --audience and --jwks-url.")
@click.option("--audience", metavar="TEXT", help="What the JWTs must be meant for.")
@click.option("--jwks-url", metavar="URL", help="Where the issuer keeps its public keys.")
@click.option("--tenant-claim", default="tenant", show_default=True, help="The claim of a JWT that names the tenant.")
@click.option(
    "--requests-per-minute", type=click.IntRange(min=1), default=6_000, show_default=True, help="Of one tenant."
)
@click.option("--requests-at-once", type=click.IntRange(min=1), default=200, show_default=True, help="Of one tenant.")
@click.option(
    "--imports", type=click.Path(exists=True, file_okay=False), metavar="FOLDER",
    help="Serve the imports whose specs (.toml) are in this folder.",
)  # fmt: skip
@click.option("--quiet", is_flag=True, help="Only warnings and errors.")
@click.option("--verbose", is_flag=True, help="Everything that happens.")
@with_limits
@pass_settings
def command(settings: CliSettings, /, app: str | None, quiet: bool, verbose: bool, **wanted: Any) -> None:
    """Serve the HTTP API and the dashboard, for the store and all who work with it.

    With MODULE:APP the arguments of submitted jobs are checked against its functions, and their limits and budgets are
    known. Without, any kind is taken, and the workers that run it check.

    The first SIGTERM or Ctrl-C lets requests finish, the second does not wait for them.

    \b
      leaseway serve --no-auth                  on this machine, to try it
      leaseway serve tasks:app                  with keys: leaseway keys create --help
      leaseway serve tasks:app --host 0.0.0.0 --allow-host jobs.example.org
    """
    serve(settings, ServeOptions(app=app, quiet=quiet, verbose=verbose, options=wanted))


SECRET = "LEASEWAY_SECRET"
"""Processes that share it continue each other's lists."""
EXTRA = ("fastapi", "starlette", "uvicorn", "httptools", "websockets", "jwt", "cryptography")
WHY = {
    errno.EADDRINUSE: "somebody else listens there; choose another --port, or --port 0 for any free one",
    errno.EACCES: "this user may not listen there; choose a --port above 1023",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose another --host",
}


class ServeOptions(NamedTuple):
    app: str | None
    quiet: bool
    verbose: bool
    options: dict[str, Any]
    """Those of `ServiceSettings`."""


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
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRA:
            raise
        raise UsageError(
            "the service needs more than the rest; install it with: pip install 'leaseway[serve]'"
        ) from None
    secret = os.environ.get(SECRET, "").encode()
    given = ServiceSettings(**wanted.options, cursor_secret=secret)
    if not given.auth and not is_loopback(given.host):
        raise UsageError(
            f"--no-auth on {given.host}: whoever reaches it could do everything; leave --no-auth out and make keys "
            "(leaseway keys create), or listen on 127.0.0.1"
        )
    return given


def listen(host: str, port: int) -> socket.socket:
    from leaseway.api.server import bound_to

    try:
        return bound_to(host, port)
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
    from leaseway.api.app import web_of
    from leaseway.api.server import Server, address_of, set_aside_what_is_loaded

    api = web_of(app, service_settings)
    # Opened here and not by the server, so that what is wrong with the store is said as other commands say it.
    try:
        await api.state.service.open()
        set_aside_what_is_loaded()
        tell = partial(announce, settings, address_of(listening), app, service_settings)
        await Server(api, lifespan=False, started=tell).serve([listening])
    finally:
        listening.close()
        await api.state.service.close()


def announce(settings: CliSettings, address: str, app: App, service_settings: "ServiceSettings") -> None:
    if settings.json:
        line({"event": "serving", "url": address, "store": redact_url(app.url), "auth": service_settings.auth})
    else:
        announce_to_people(address, app, service_settings)
    sys.stdout.flush()  # whoever started it waits for the address, mostly at the end of a pipe


def announce_to_people(address: str, app: App, service_settings: "ServiceSettings") -> None:
    say(f"{redact_url(app.url)} is served at {address}")
    if service_settings.auth:
        # Without a word, `keys` would look for another store than this one.
        elsewhere = "" if store_url(CliSettings()) == app.url else f" --store {quote(redact_url(app.url))}"
        note(f"Whoever asks needs a key. A first one: leaseway keys create --role operator{elsewhere}")
    else:
        note("Without authentication: whoever reaches it on this machine may do everything.")
