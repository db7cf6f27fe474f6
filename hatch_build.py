"""Run when the package is built: the description that the package index shows.

It is README.md with absolute links. On the index, a relative link or picture would lead nowhere.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

SITE = "https://leaseway.dev/"
RELATIVE_LINK = re.compile(r"(!?\[[^\]]*\]\()(?!https?://|#|mailto:)([^)\s]+)")
FENCE = re.compile(r"^(```\w+) .*$", re.MULTILINE)
"""A code block with words after its language, which only the tests of the documentation understand."""


class Description(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": describe(text)}


def describe(readme: str) -> str:
    return FENCE.sub(r"\1", RELATIVE_LINK.sub(rf"\1{SITE}\2", readme))
