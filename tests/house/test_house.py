"""The measurements must find what they claim to count; a measure that finds nothing would report success."""

from pathlib import Path

import pytest
from tests.house.measures import MEASURES
from tests.house.source import Checkout

FILES = {
    "src/leaseway/__init__.py": "",
    "src/leaseway/ports/__init__.py": "",
    "src/leaseway/ports/store.py": """
from typing import Protocol

class Reads(Protocol):
    def a(self): ...
    def b(self): ...
    def c(self): ...
    def d(self): ...
    def e(self): ...

class Store(Reads, Protocol):
    def f(self): ...
    def g(self): ...
    def h(self): ...
    def i(self): ...
""",
    "src/leaseway/small.py": "def age_of(job): ...\n\nclass Row: ...\n",
    "src/leaseway/app.py": "from .small import age_of\nfrom leaseway.ports import store\n\nclass Row:\n"
    "    def size_of(self): ...\n" + "\n" * 60,
    "src/leaseway/testing/suite.py": 'def test_b():\n    """It matters."""\n' + "\n" * 60,
    "src/leaseway/stores/postgres/schema/claim.sql": """
CREATE FUNCTION exchange(n int) RETURNS int LANGUAGE sql AS $$ SELECT pick(n) $$; -- unused(1)
CREATE FUNCTION unused(n int) RETURNS int LANGUAGE sql AS $$ SELECT 1 $$;
""",
    "src/leaseway/stores/postgres/schema/pick.sql": "CREATE FUNCTION pick(n int) RETURNS int AS 'SELECT 1'",
    "src/leaseway/stores/postgres/schema/unused.sql": "CREATE FUNCTION other() RETURNS int AS 'SELECT 1'",
    "src/leaseway/stores/redis/keys.py": "class Keys: ...\n",
    "src/leaseway/stores/sqlite/keys.py": "class Keys: ...\n",
    "tests/test_a.py": "def test_a():\n    assert True\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Checkout(tmp_path)


EXPECTED = {
    "modules": ("7 / 8", True, "2 leaseway/ports"),
    "exchange": ("2 in 1 migration(s)", True, "src/leaseway/stores/postgres/schema/pick.sql: pick"),
    "classes": ("2", False, "Row: src/leaseway/app.py:4, src/leaseway/small.py:3 (not two backends)"),
    "of": ("1", True, "src/leaseway/small.py:1: age_of"),
    "ports": ("1", False, "leaseway.ports.store.Store: 9"),
    "small": ("2", True, "src/leaseway/small.py (3 lines): leaseway.app"),
    "tests": ("50.0% (1 of 2)", False, "tests/test_a.py:1: test_a"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_row_counts_its_offenders(name: str, checkout: Checkout) -> None:
    """The table decides what is worth renaming, so a wrong figure sends people to the wrong place."""
    value, is_met, offender = EXPECTED[name]
    figure = MEASURES[name](checkout)
    assert (figure.value, figure.is_met) == (value, is_met)
    assert offender in figure.offenders


@pytest.fixture(scope="module")
def this_checkout() -> Checkout:
    """Parsed once for all rows."""
    return Checkout(Path(__file__).resolve().parents[2])


@pytest.mark.parametrize("name", MEASURES)
def test_this_checkout_keeps_its_shape(name: str, this_checkout: Checkout) -> None:
    """Names and modules become unguessable one small change at a time; each of these rows is within its aim today."""
    figure = MEASURES[name](this_checkout)
    assert figure.is_met, f"{figure.what}: {figure.value}, aim {figure.aim}; see ./dev house --list\n" + "\n".join(
        figure.offenders[:20]
    )
