"""The rules. Each receives the evidence and yields violations as text.

The numbers are those of the list of invariants.
"""

from collections.abc import Callable, Iterator

from chaos.evidence import Evidence

FINAL = ("done", "failed", "cancelled")

Rule = Callable[[Evidence], Iterator[str]]
