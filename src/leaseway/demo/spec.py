"""The demo's import, as a user would write it: one TOML file."""

import json
from pathlib import Path
from typing import NamedTuple

KEY_VARIABLE = "OCM_API_KEY"
API_KEY = "0f0f0f0f-0000-4000-8000-000000000001"
"""The fake API accepts any key of this form."""
PAGE_LIMIT = 250
PAGE_LIMIT_MIN = 10
PAGES_LEAST = 400
"""With few rows the pages are smaller, so that there is time to kill a worker."""
SHARDS = 48
TABLE = "poi"
STORE_VARIABLE = "LEASEWAY_DEMO_STORE"
"""Tells the workers the URL of the store: arguments of a process are visible to all users."""
ID_GAPS = 1.25
"""Ids per row: some numbers were never published."""

TEXT = """\
version = 1

[source]
name = "ocm"
base_url = "{url}/v3"
auth = {{ header = "X-API-Key", env = "{variable}" }}  # the name of a variable, never the key itself
limits = ["{limit}/second"]                            # shared by all workers, in every window

[resource]
path = "/poi"
params = {{ compact = true, verbose = false }}
key = "ID"
stamp = {{ field = "DateLastStatusUpdate", granularity = "1m", lag = "0s" }}
volatile = ["IsRecentlyVerified", "DateLastVerified"]  # computed for each request: no change

[resource.page]
cursor = "keyset"
param = "greaterthanid"
start = 0
limit_param = "maxresults"
limit = {page_limit}
fixed = {{ sortby = "id_asc" }}

[resource.partition]
by = "id_range"
size = {size}
upper = "/system/status#$.maxPOIId"

[resource.columns]
title = {{ path = "AddressInfo.Title", type = "text" }}
country = {{ path = "AddressInfo.CountryID", type = "integer" }}
latitude = {{ path = "AddressInfo.Latitude", type = "real" }}
longitude = {{ path = "AddressInfo.Longitude", type = "real" }}

[sink]
url = {sink}
table = "{table}"
"""


class Files(NamedTuple):
    """The files in the demo's folder."""

    folder: Path
    database: str | None = None
    """The URL of a database for jobs and rows. None: two SQLite files."""

    @property
    def spec(self) -> Path:
        return self.folder / "import.toml"

    @property
    def places(self) -> Path:
        return self.folder / "places.db"

    @property
    def jobs(self) -> Path:
        return self.folder / "jobs.db"

    @property
    def truth(self) -> Path:
        """The provider's own rows."""
        return self.folder / "truth.json"

    @property
    def journal(self) -> Path:
        """Every request that the provider received."""
        return self.folder / "journal.json"

    @property
    def store_url(self) -> str:
        return self.database or f"sqlite:///{self.jobs}"

    @property
    def sink_url(self) -> str:
        return self.database or f"sqlite:///{self.places}"


def page_limit(rows: int) -> int:
    return max(min(PAGE_LIMIT, rows // PAGES_LEAST), PAGE_LIMIT_MIN)


def write_spec(files: Files, url: str, limit: int, rows: int) -> None:
    text = TEXT.format(
        url=url,
        variable=KEY_VARIABLE,
        limit=limit,
        page_limit=page_limit(rows),
        size=round(rows * ID_GAPS / SHARDS),
        sink=json.dumps(files.sink_url),
        table=TABLE,
    )
    files.spec.touch(mode=0o600)  # the URL may contain a password
    files.spec.write_text(text, "utf-8")
