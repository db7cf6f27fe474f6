"""A program of a user's, run by the code of two versions side by side: `python program.py submit|work URL RECORD`.

What it did is a line in its record: what it submitted and was told is stored, or what it ran.
"""

import asyncio
import os
import signal
import sys
import time
from itertools import count

from leaseway import App, Context

MODE, URL, RECORD = sys.argv[1:]

app = App(URL)
record = os.open(RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def note(labels: list[str]) -> None:
    os.write(record, "".join(f"{time.monotonic()} {label}\n" for label in labels).encode())


@app.job(attempts=5)
async def run(ctx: Context, label: str) -> str:
    note([label])
    return label


async def submit() -> None:
    """One, one with a key, and many, over and over."""
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    async with app:
        for turn in count():
            if leaving.is_set():
                return
            names = [f"{os.getpid()}-{turn}-{n}" for n in range(12)]
            await run.submit(label=names[0])
            await run.submit(label=names[1], key=names[1])
            await app.submit_many([run.bind(label=name) for name in names[2:]])
            note(names)
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    if MODE == "work":
        app.work(concurrency=5)
    else:
        asyncio.run(submit())
