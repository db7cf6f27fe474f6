"""python -m leaseway.testing.fake_open_charge_map: the fake API as a process. Its first line of output is its URL."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

from leaseway.domain.errors import UsageError
from leaseway.testing.fake_open_charge_map import Listing, Poi, fake_api, places, synthetic


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m leaseway.testing.fake_open_charge_map", description="Open Charge Map, stood in"
    )
    parser.add_argument("--port", type=int, default=0, help="0, the default: any free one")
    parser.add_argument("--rows", type=int, default=None, help="how many; default: 20,000, or all places")
    parser.add_argument("--places", action="store_true", help="real places (needs 'leaseway[demo]')")
    parser.add_argument("--bulk", type=int, default=0, help="so many rows were changed in one minute")
    parser.add_argument("--encoded", action="store_true", help="encode all rows at the start, to serve them faster")
    parser.add_argument("--limit", action="append", default=[], metavar="RATE", help='such as "50/second"; repeatable')
    parser.add_argument("--faults", type=json.loads, default={}, metavar="JSON", help='such as {"empty_every": 20}')
    parser.add_argument("--list", action="append", default=[], metavar="NAME=FILE", help="a JSON list to serve, too")
    parser.add_argument(
        "--until-eof", action="store_true", help="end when standard input does: with the parent process"
    )
    return parser


def make_pois(asked: argparse.Namespace) -> list[Poi]:
    if asked.places:
        return places(asked.bulk, asked.rows)
    return synthetic(20_000 if asked.rows is None else asked.rows, bulk=asked.bulk)


def parse_listing(text: str) -> tuple[str, Listing]:
    name, _, path = text.partition("=")
    return name, Listing(json.loads(Path(path).read_text(encoding="utf-8")))


async def serve(asked: argparse.Namespace) -> None:
    listings = dict(map(parse_listing, asked.list))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # not on Windows, where Ctrl+C raises
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if asked.until_eof:
        threading.Thread(target=end_with_input, daemon=True).start()
    pois = make_pois(asked)
    async with fake_api(pois, limits=asked.limit, faults=asked.faults, listings=listings, port=asked.port) as it:
        if asked.encoded:
            it.table.encode()
        print(it.url, flush=True)
        await stop.wait()


def end_with_input() -> None:
    """The parent process holds the other end of the pipe: when it ends, this process ends."""
    os.read(0, 1)
    os._exit(0)


def main() -> int:
    try:
        asyncio.run(serve(arguments().parse_args()))
    except (UsageError, OSError) as error:
        print(f"fake_open_charge_map: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
