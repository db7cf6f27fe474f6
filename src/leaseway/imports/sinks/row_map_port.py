"""Where the rows of a table lie, part after part, for a map that shows them as they arrive.

Reading changes nothing and blocks no writer, and what one look costs does not grow with the table.
Not every sink can tell; one that cannot has no such method.
"""

from typing import Protocol, runtime_checkable

from leaseway.imports.spec.geo_grid import RowMapPage, RowPosition


@runtime_checkable
class RowMap(Protocol):
    async def places(self, source: str, run: str, position: RowPosition, after: str, rows_max: int) -> RowMapPage:
        """Rows of the source that are there and not deleted, counted on a grid: those that this run wrote last, and
        those that others did. `after` is "" for the beginning, or what the last look answered.

        New rows come after all others, as a rule. Rows that are rewritten may stay where they are, and new ones may
        take the place of old ones: a look from the beginning sees all of them."""
        ...
