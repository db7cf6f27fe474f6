"""Finds the schema files that one PostgreSQL function uses, directly or through other functions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMMENT = re.compile(r"--.*")
DEFINITION = re.compile(
    r"^CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE)\s+(?:[\w:]+\.)?(\w+)(.*?)"
    r"(?=^(?:CREATE|DROP|ALTER|GRANT|REVOKE|INSERT|UPDATE|COMMENT|DO)\b|\Z)",
    re.DOTALL | re.MULTILINE,
)
CALL = re.compile(r"\b(\w+)\s*\(")
VERSION = re.compile(r"^\d{4}")


@dataclass(frozen=True)
class Definition:
    name: str
    body: str
    path: Path

    @property
    def calls(self) -> set[str]:
        return set(CALL.findall(self.body))

    @property
    def version(self) -> str:
        """The migration that the file belongs to, or its folder if files are not numbered."""
        numbered = (match[0] for part in self.path.parts if (match := VERSION.match(part)))
        return next(numbered, str(self.path.parent))


def definitions(folder: Path) -> Iterator[Definition]:
    for path in sorted(folder.rglob("*.sql")):
        text = COMMENT.sub("", path.read_text("utf-8"))
        yield from (Definition(match[1], match[2], path) for match in DEFINITION.finditer(text))


def reachable(start: str, folder: Path) -> list[Definition]:
    """Every definition, replaced ones included, of the functions that `start` can call."""
    known: dict[str, list[Definition]] = {}
    for each in definitions(folder):
        known.setdefault(each.name, []).append(each)
    names, waiting = set[str](), [start]
    while waiting:
        name = waiting.pop()
        if name in known and name not in names:
            names.add(name)
            waiting += known[name][-1].calls
    return [each for name in sorted(names) for each in known[name]]
