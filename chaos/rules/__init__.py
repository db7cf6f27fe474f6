"""What must hold whatever happened. Each rule gets the evidence and yields what is wrong, in words.

The numbers are those of the invariants in the reliability reference.
"""

from collections.abc import Callable, Iterator

from chaos.evidence import Evidence

FINAL = ("done", "failed", "cancelled")

Rule = Callable[[Evidence], Iterator[str]]
