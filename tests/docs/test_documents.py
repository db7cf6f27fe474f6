"""Every document does what it says, and every link leads to a file and a heading that exist."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.docs.document import ROOT, broken_links, run_document

from leaseway.testing.postgres import postgres_server

PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted(ROOT.glob("docs/**/*.md"))]
DOCUMENTS = [str(page.relative_to(ROOT)) for page in PAGES if page.exists()]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_does_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that no longer works costs every reader an hour, and costs the project their trust."""
    text = (ROOT / name).read_text()
    with postgres_server() if "DATABASE_URL" in text else nullcontext() as server:
        if server is not None:
            monkeypatch.setenv("DATABASE_URL", server.url)
        run_document(text, tmp_path)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_link_leads_somewhere(name: str) -> None:
    """When a page moves or a heading changes, the links to it must follow."""
    assert broken_links((ROOT / name).read_text(), (ROOT / name).parent) == []
