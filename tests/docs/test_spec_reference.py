"""The reference page of import specs has every field of the published JSON Schema."""

import json
import re

from tests.docs.document import ROOT

REFERENCE = ROOT / "docs" / "reference"


def test_the_page_describes_every_field_of_a_spec() -> None:
    """A field that is only in the schema is found by users of an editor plug-in and by no one else."""
    page = (REFERENCE / "import-spec.md").read_text("utf-8")
    definitions = json.loads((REFERENCE / "import-spec.schema.json").read_text("utf-8"))["$defs"]
    fields = {field for definition in definitions.values() for field in definition.get("properties", ())}
    assert sorted(fields - set(re.findall(r"`(\w+)`", page)) - {"by"}) == []
