"""The package as it would be published: built from this checkout, and checked as the index checks it. No network."""

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hatch_build import SITE, describe
from tests.archives import extract

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ANY_LINK = re.compile(r"\]\(([^)\s]+)")


class Package(NamedTuple):
    source: Path
    wheel: Path

    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            return Parser().parsestr(archive.read(name).decode())


def run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The wheel is built from the unpacked source archive, as an installer without a wheel does it."""
    folder = tmp_path_factory.mktemp("package")
    run(["hatchling", "build", "-t", "sdist", "-d", str(folder)], ROOT)
    (source,) = folder.glob("*.tar.gz")
    extract(source, folder)
    run(["hatchling", "build", "-t", "wheel", "-d", str(folder)], folder / source.name.removesuffix(".tar.gz"))
    (wheel,) = folder.glob("*.whl")
    return Package(source, wheel)


def test_the_index_accepts_both_archives(package: Package) -> None:
    """Twine renders the description as the index does; the strict check refuses what would be shown as plain text."""
    told = run(["twine", "check", "--strict", str(package.source), str(package.wheel)], ROOT)
    assert told.count("PASSED") == 2, told


def test_the_wheel_has_every_file_of_the_package(package: Package) -> None:
    """A .sql, .lua or py.typed that is missing is noticed only by the first user who installs the wheel."""
    folder = ROOT / "src"
    files = {path.relative_to(folder).as_posix() for path in (folder / "leaseway").rglob("*") if path.is_file()}
    expected = {name for name in files if "__pycache__" not in name}
    with zipfile.ZipFile(package.wheel) as archive:
        found = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert "leaseway/py.typed" in found
    assert found == expected


def test_the_description_has_no_relative_links(package: Package) -> None:
    """On the index they lead nowhere, and pictures are broken."""
    description = package.metadata().get_payload()
    assert isinstance(description, str)
    links = ANY_LINK.findall(description)
    assert len(links) > 15
    assert [link for link in links if not link.startswith("https://")] == []
    assert f"]({SITE}docs/demo.svg)" in description
    assert "```python title" not in description


def test_links_keep_their_meaning() -> None:
    """Links to other sites and within the page stay as they are."""
    kept = "[a](https://x.example/b) [c](#d) `f(x)[0](y)`"
    assert describe(kept).startswith("[a](https://x.example/b) [c](#d)")
    assert describe("![p](docs/p.svg) [q](A.md#b)") == f"![p]({SITE}docs/p.svg) [q]({SITE}A.md#b)"


def test_every_address_of_the_project_is_a_page_of_the_repository(package: Package) -> None:
    """The index shows these addresses beside the description."""
    urls = dict(line.split(", ") for line in package.metadata().get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= urls.keys()
    for url in urls.values():
        page, _, heading = url.removeprefix(SITE.rstrip("/")).strip("/").partition("#")
        text = (ROOT / (page or "README.md")).read_text("utf-8")
        assert not heading or f"\n## {heading.replace('-', ' ').capitalize()}\n" in text


def test_all_is_every_extra() -> None:
    """`pip install leaseway[all]` must not leave out an extra that was added later."""
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.removeprefix("leaseway[").removesuffix("]").split(","))
    assert named == extras.keys() - {"all"}


def test_classifiers_name_the_versions_that_are_tested() -> None:
    """Users filter the index by them."""
    (line,) = re.findall(r'^python_versions="(.*)"$', (ROOT / "dev").read_text("utf-8"), re.MULTILINE)
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert named == line.split()
    assert PROJECT["requires-python"] == f">={named[0]}"
