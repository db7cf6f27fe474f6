"""The entry point: parses the command line, calls the command, and turns its result into an exit code."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import click

from leaseway.cli.lazy_groups import Lazy, LazyGroup
from leaseway.cli.options import CliSettings, with_limits

COMMANDS = {
    "work": Lazy("leaseway.cli.commands.work:command", "Run the jobs of an app."),
    "serve": Lazy("leaseway.cli.commands.serve:command", "Serve the HTTP API and the dashboard."),
    "submit": Lazy("leaseway.cli.commands.submit:command", "Submit a job, or many from a file."),
    "jobs": Lazy(
        "leaseway.cli.commands.jobs:command", "List and show jobs, explain why they wait, retry, cancel, discard."
    ),
    "lanes": Lazy("leaseway.cli.commands.lanes:command", "What each queue and tenant holds: list, pause, resume."),
    "workers": Lazy("leaseway.cli.commands.workers:command", "Workers: list, drain."),
    "stats": Lazy("leaseway.cli.commands.stats:command", "Attempts, failures and running times by kind."),
    "scale": Lazy("leaseway.cli.commands.scale:command", "How many workers the load needs: status, simulate."),
    "scaler": Lazy("leaseway.cli.commands.scaler:command", "Serve KEDA's external scaler over gRPC."),
    "simulate": Lazy("leaseway.cli.commands.simulate:command", "Price a load before it runs: time, requests, cost."),
    "limits": Lazy("leaseway.cli.commands.limits:command", "Limits of providers: list, explain, set, pause, forget."),
    "providers": Lazy("leaseway.cli.commands.providers:command", "Presets of providers: limits, headers, prices."),
    "budgets": Lazy("leaseway.cli.commands.budgets:command", "Budgets: what is spent, held and left."),
    "tenants": Lazy("leaseway.cli.commands.tenants:command", "Tenants: weights and caps."),
    "keys": Lazy("leaseway.cli.commands.keys:command", "API keys: list, create, rotate, revoke."),
    "import": Lazy(
        "leaseway.cli.commands.imports:command", "Import from an API or a file: plan, run, resume, inspect."
    ),
    "cron": Lazy("leaseway.cli.commands.cron:command", "Schedules: list, pause, resume."),
    "migrate": Lazy("leaseway.cli.commands.migrate:command", "Create the store or update its schema."),
    "doctor": Lazy(
        "leaseway.cli.commands.doctor:command", "Check a store for problems, and say what to do about each."
    ),
    "backup": Lazy("leaseway.cli.commands.backup:command", "Copy a store in an SQLite file while it is in use."),
    "restore": Lazy("leaseway.cli.commands.backup:restore_command", "Restore a store from a backup."),
    "demo": Lazy("leaseway.demo.main:command", "Run a demonstration on this machine."),
    "bench": Lazy("leaseway.bench.main:command", "Measure leaseway's speed on this machine."),
    "completion": Lazy("leaseway.cli.commands.completion:command", "Print the completion script of a shell."),
}

PIPE_CLOSED = 141
"""The exit code that a shell reports for a program that wrote into a closed pipe."""

HELP = """Run jobs that call a rate-limited, paid API: no job lost, no job done twice.

\b
  leaseway work tasks:app              run the jobs of `app` in tasks.py
  leaseway submit tasks:app KIND a=1   submit a job
  leaseway jobs list                   list jobs and their states
"""


class Root(LazyGroup):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would report it as an internal error.
            raise PipeClosed from error


class PipeClosed(Exception):
    """The reader of the output has gone: `leaseway jobs list | head`."""


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from leaseway import __version__

        click.echo(f"leaseway {__version__}")
        ctx.exit()


@with_limits
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def _before() -> None:
    """Options before the command are stored by their callbacks."""


root = Root(
    lazy=COMMANDS,
    name="leaseway",
    help=HELP,
    callback=_before,
    params=list(reversed(getattr(_before, "__click_params__", []))),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code."""
    settings = CliSettings()
    code = _run(sys.argv[1:] if argv is None else list(argv), settings)
    if argv is None and settings.runs_handlers:
        leave_soon(code)
    return code


def _run(argv: list[str], settings: CliSettings) -> int:
    _write_anything()
    try:
        answer: Any = root.main(argv, prog_name="leaseway", obj=settings, standalone_mode=False)
        sys.stdout.flush()
        return answer if isinstance(answer, int) else 0
    except (PipeClosed, BrokenPipeError):
        _silence()
        return PIPE_CLOSED
    except SystemExit as left:  # completion
        return left.code if isinstance(left.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - nothing may reach the user as a traceback unasked
        from leaseway.cli.errors import tell

        return tell(error, as_json=_said("--json", argv), traceback=_wants_traceback(argv))


def _silence() -> None:
    """Keep Python from reporting the closed pipe when it flushes the rest."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _said(option: str, argv: list[str]) -> bool:
    """Whether the option was given, even if parsing failed before it."""
    return option in argv[: argv.index("--") if "--" in argv else None]


def _wants_traceback(argv: list[str]) -> bool:
    return _said("--traceback", argv) or os.environ.get("LEASEWAY_TRACEBACK", "") not in ("", "0")


def _write_anything() -> None:
    """Prepare the standard streams: a character that the terminal lacks is replaced, and a closed stream (`>&-`) is
    replaced by /dev/null. Neither ends the command.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and stream.errors == "strict":
            reconfigure(errors="replace")


LINGER_SECONDS = 2.0


def leave_soon(code: int) -> None:
    """Let the interpreter exit normally, but not for ever: a handler's thread that hangs must not keep the process
    alive.
    """

    def insist() -> None:
        time.sleep(LINGER_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    threading.Thread(target=insist, name="leaseway-leave", daemon=True).start()
