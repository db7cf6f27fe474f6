"""The campaign names tables and functions of the schema. A wrong name would be noticed only by a long run."""

import re
from pathlib import Path

import pytest
from chaos.faults.server import LOCKED_TABLES
from chaos.sabotage import SABOTAGES
from tests.house.sql import definitions

import leaseway.stores.postgres
from leaseway.stores.sqlite.database import statements

SCHEMA = Path(leaseway.stores.postgres.__file__).parent / "schema"


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_finds_the_code_that_it_changes(name: str) -> None:
    """A sabotage that changes nothing leaves the safeguard in place, and the campaign proves nothing about it."""
    functions = {each.name: each.body for each in definitions(SCHEMA)}
    for function, text, _ in SABOTAGES[name].sql:
        assert text in functions[function], f"{function} does not contain {text!r}"
    assert SABOTAGES[name].statements() != statements() or not SABOTAGES[name].file_sql
    for owner, attribute, _ in (*SABOTAGES[name].code, *SABOTAGES[name].mongodb):
        assert hasattr(owner, attribute), f"{owner} has no attribute {attribute}"


def test_every_table_that_is_locked_exists() -> None:
    """The fault would end the campaign with an error instead of disturbing it."""
    schema = "".join(path.read_text("utf-8") for path in SCHEMA.glob("*.sql"))
    tables = set(re.findall(r"^CREATE TABLE (\w+)", schema, re.MULTILINE))
    assert set(LOCKED_TABLES) <= tables
