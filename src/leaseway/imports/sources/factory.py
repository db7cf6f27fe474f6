"""Spec ─► source."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.limits.limit import Limit
from leaseway.imports.domain.page import Record
from leaseway.imports.domain.partition import Shard
from leaseway.imports.sources.credentials import read_secret
from leaseway.imports.sources.files import FileSource
from leaseway.imports.sources.http_json import JsonSource
from leaseway.imports.sources.ocm import USER_AGENT, OpenChargeMap
from leaseway.imports.sources.port import RequestClient, Source, SourceProbe
from leaseway.imports.spec.model import Spec


class ImportSource(Source, Protocol):
    """A source as imports need it, including what the guards use."""

    @property
    def page_limit(self) -> int: ...

    @property
    def limit(self) -> Limit | None:
        """The source's limit, or None."""
        ...

    def record_key(self, record: Record) -> Any:
        """The id of a record as in cursors, or None."""
        ...

    def is_ours(self, shard: Shard) -> Callable[[Record], bool]:
        """Whether a record belongs to the shard, for filters that the source itself must apply."""
        ...


def make_source(spec: Spec, folder: Path, environ: Mapping[str, str]) -> ImportSource:
    """`folder` is the folder of the spec, for files; `environ` contains the secrets."""
    if spec.source.file is not None:
        return FileSource(spec, folder)
    return OcmSource(spec, environ) if spec.source.kind == "ocm" else JsonSource(spec, environ)


def source_limit(spec: Spec) -> Limit | None:
    source = spec.source
    if not source.limits and source.concurrency is None:
        return None
    return Limit(source.limit_name or source.name, *source.limits, concurrency=source.concurrency)


class OcmSource(OpenChargeMap):
    """The client for Open Charge Map with the name, limits and countries of a spec."""

    def __init__(self, spec: Spec, environ: Mapping[str, str]) -> None:
        agent = spec.source.headers.get("User-Agent", USER_AGENT)
        try:
            super().__init__(read_secret(spec, environ) or "", spec.source.base_url or "", agent)
        except BadValue as error:
            place = "source.headers.User-Agent" if error.field == "user_agent" else "source.auth.env"
            raise UsageError(f"{place}: {error.problem}") from error
        self.name = spec.source.name
        self.page_limit = spec.resource.page.limit
        self._spec = spec

    @property
    def limit(self) -> Limit | None:  # type: ignore[override]
        return source_limit(self._spec)

    def record_key(self, record: Record) -> Any:
        return record.get(self.key_field) if isinstance(record, dict) else None

    async def probe(self, http: RequestClient) -> SourceProbe:
        found = await super().probe(http)
        values = self._spec.resource.filters["country"].values
        if values is None:
            return found
        chosen = [str(value) for value in values]
        unknown = [code for code in chosen if code not in found.values["country"]]
        if unknown:
            raise BadValue(
                "resource.filters.country.values",
                f"Open Charge Map does not know {', '.join(unknown)}; codes have two capital letters, for example ES",
            )
        return replace(found, values={**found.values, "country": chosen})
