"""An app with a blob store in a folder, and jobs with long texts."""

from pathlib import Path
from typing import Any

from leaseway import App, Context

LONG = "é" * 200_000
"""400 kB, more than a row may have."""


def make_app(tmp_path: Path, **options: Any) -> App:
    app = App(f"sqlite:///{tmp_path}/work.db", **{"blobs": f"file://{tmp_path}/blobs", **options})

    @app.job
    async def double(ctx: Context, text: str) -> str:
        await ctx.checkpoint(text + "!")
        return text * 2

    @app.job
    async def parent(ctx: Context) -> None:
        ctx.submit(app.bind("double", {"text": LONG}))

    return app
