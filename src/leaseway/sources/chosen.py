"""A spec ─► its source."""

from collections.abc import Mapping
from pathlib import Path

from leaseway.domain.imports.spec_parts import Spec
from leaseway.sources.files import FileSource
from leaseway.sources.http_json import JsonSource


def source_of(spec: Spec, folder: Path, environ: Mapping[str, str]) -> JsonSource | FileSource:
    """`folder`: where the spec is, for files; `environ`: where secrets are."""
    return JsonSource(spec, environ) if spec.source.file is None else FileSource(spec, folder)
