"""The reference page of Python describes every public name, with the signature that it has."""

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from tests.docs.document import ROOT
from tests.docs.python_reference import MARK, MODULES, PAGE, public_names, render_page

import leaseway
from leaseway import AesGcm, App, Budget, Context, JobHandle, Limit
from leaseway.simulation import simulate
from leaseway.testing import virtual_time

TEXT = PAGE.read_text("utf-8")
BY_HAND = TEXT.partition(MARK)[0]
IMPORT = re.compile(r"^\s*from (leaseway[\w.]*) import ([^#\n]+)", re.MULTILINE)


def test_the_signatures_are_up_to_date() -> None:
    """Readers copy calls from here. `python -m tests.docs.python_reference` writes the signatures again."""
    assert TEXT.partition(MARK)[2] == render_page()


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_explained(module: str) -> None:
    """A signature alone does not say when to use a name: the part above the signatures does."""
    assert [name for name in public_names(module) if not re.search(rf"\b{name}\b", BY_HAND)] == []


def test_what_the_documents_import_is_on_the_page() -> None:
    """A name that a guide tells users to import is public, and cannot change without notice."""
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    imported = {
        (module, name.strip())
        for path in documents
        for module, names in IMPORT.findall(path.read_text("utf-8"))
        for name in names.split(",")
    }
    assert len(imported) > 15
    unknown = [
        f"from {module} import {name}"
        for module, name in sorted(imported)
        if not (module in MODULES and name in public_names(module)) and not (name == "*" and f"`{module}`" in BY_HAND)
    ]
    assert unknown == []


@pytest.mark.parametrize("call", re.findall(r"`([A-Z]\w+\([^`]*\))`", BY_HAND.replace("\n", " ")))
def test_calls_in_the_text_name_parameters_that_exist(call: str) -> None:
    """The text above the signatures is written by hand, and a parameter may be renamed or removed."""
    name, _, arguments = call.removesuffix(")").partition("(")
    home = next(module for module in MODULES if name in public_names(module))
    signature = re.search(rf"\n```text\n{name}\b(.*?)\n```", TEXT.replace("\n        ", " "), re.DOTALL)
    assert signature is not None, f"{name} of {home}"
    for parameter in re.findall(r"(\w+)=", arguments):
        assert re.search(rf"\b{parameter}\b[:=]|\*\*", signature[1]), f"{name} has no parameter {parameter}"


EXPLAINED: dict[str, Callable[..., Any]] = {
    "App": App.__init__,
    "Declare jobs": App.job,
    "Run workers": App.worker,
    "JobHandle": JobHandle.result,
    "Context and SyncContext": Context.call,
    "Limit": Limit.__init__,
    "Budget": Budget.__init__,
    "AesGcm": AesGcm.__init__,
    "Simulation": simulate,
    "Testing": virtual_time,
}
"""Sections, with a function whose every parameter they explain."""


@pytest.mark.parametrize("section", EXPLAINED)
def test_every_parameter_is_explained(section: str) -> None:
    """A user cannot guess an option that only the signature has."""
    (text,) = re.findall(rf"^##+ {section}\n(.*?)(?=^## |\Z)", BY_HAND, re.MULTILINE | re.DOTALL)
    parameters = inspect.signature(inspect.unwrap(EXPLAINED[section])).parameters.keys() - {"self", "function"}
    code = " ".join(re.findall(r"`[^`]+`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
    assert len(parameters) > 1
    assert [name for name in parameters if not re.search(rf"\b{name}\b", code)] == []


def test_public_names_are_where_they_say() -> None:
    """A name that is on the page must be importable as the page says."""
    for module in MODULES:
        for name in public_names(module):
            assert hasattr(import_module(module), name)
    assert set(public_names("leaseway")) == set(leaseway.__all__)
