"""leaseway submit"""

from typing import Any

import click

from leaseway.cli.commands.options import pass_settings, with_store
from leaseway.cli.commands.types import DURATION, MOMENT
from leaseway.cli.settings import Settings


@click.command("submit")
@click.argument("app", metavar="MODULE:APP")
@click.argument("kind")
@click.argument("arguments", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--json-args", metavar="JSON", help="The arguments as one JSON object.")
@click.option("--many", metavar="FILE", help="One JSON object of arguments per line; - reads standard input.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key submits the same job only once.")
@click.option("--tenant", metavar="TEXT")
@click.option("--queue", metavar="TEXT", help="Instead of the kind's own.")
@click.option("--priority", type=int, help="-1000 … 1000; higher runs first.")
@click.option("--delay", type=DURATION, metavar="TIME", help="Run not before this time has passed: 90, 5m, 2h.")
@click.option(
    "--run-at", type=MOMENT, metavar="TIME", help="Run not before: 2030-12-31T08:00, in local time or with a zone."
)
@click.option("--attempts", type=int, help="How often it may be tried.")
@click.option("--timeout", type=DURATION, metavar="TIME", help="How long one attempt may take.")
@click.option("--shard-key", metavar="TEXT")
@click.option("--cursor", metavar="VALUE", help="Where the first attempt starts; JSON, else text.")
@with_store
@pass_settings
def command(
    settings: Settings,
    /,
    app: str,
    kind: str,
    arguments: tuple[str, ...],
    json_args: str | None,
    many: str | None,
    **options: Any,
) -> None:
    """Submit a job, or many from a file.

    A VALUE that is valid JSON is taken as such (5, true, null, [1,2]), anything else as text. For the text 5 write
    name='"5"'.

    \b
      leaseway submit tasks:app geocode address="Main Street 1" --key geo:1
      leaseway submit tasks:app geocode --many addresses.jsonl
    """
    if many is not None:
        from leaseway.cli.verbs.submit_many import submit_many

        submit_many(settings, app, kind, many, (arguments, json_args), options)
    else:
        from leaseway.cli.verbs.submit import submit_one

        submit_one(settings, app, kind, (arguments, json_args), options)
