"""Every document does what it says, and every link leads to a file and a heading that exist."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.docs.document import ROOT, broken_links, run_document

from leaseway.testing.mongodb import mongodb_server
from leaseway.testing.postgres import postgres_server

PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "SECURITY.md", *sorted(ROOT.glob("docs/**/*.md"))]
PAGES += sorted(ROOT.glob("examples/**/*.md"))
DOCUMENTS = [str(page.relative_to(ROOT)) for page in PAGES if page.exists()]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_does_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that no longer works costs every reader an hour, and costs the project their trust."""
    text = (ROOT / name).read_text()
    with ExitStack() as servers:
        if "DATABASE_URL" in text:
            monkeypatch.setenv("DATABASE_URL", servers.enter_context(postgres_server()).url)
        if "MONGODB_URL" in text:
            monkeypatch.setenv("MONGODB_URL", servers.enter_context(mongodb_server()).url)
        run_document(text, tmp_path)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_link_leads_somewhere(name: str) -> None:
    """When a page moves or a heading changes, the links to it must follow."""
    assert broken_links((ROOT / name).read_text(), (ROOT / name).parent) == []
