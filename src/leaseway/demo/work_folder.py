"""The folder of the demo: removed at its end, unless the user named it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click


class WorkFolder:
    """Where the demo keeps its files: a temporary folder, or one that the user named."""

    def __init__(self, path: Path, is_kept: bool) -> None:
        self.path = path
        self.is_kept = is_kept

    def keep(self) -> None:
        self.is_kept = True


@contextmanager
def work_folder(keep: str | None) -> Iterator[WorkFolder]:
    folder = WorkFolder(
        Path(tempfile.mkdtemp(prefix="leaseway-demo-")) if keep is None else create_folder(keep), keep is not None
    )
    try:
        yield folder
    finally:
        if not folder.is_kept:
            shutil.rmtree(folder.path, ignore_errors=True)


def create_folder(name: str) -> Path:
    """Refuses a folder with files: jobs of an earlier demo would be counted as lost or doubled."""
    path = Path(name).absolute()
    if path.is_dir() and any(path.iterdir()):
        raise click.BadParameter(f"{name} is not empty; name a new folder", param_hint="--keep")
    path.mkdir(parents=True, exist_ok=True)
    return path
