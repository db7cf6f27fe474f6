"""The structure of a spec, as in its TOML file."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from leaseway.imports.domain import timestamps
from leaseway.imports.domain.page import ColumnType

Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,62}$", description="Small letters, digits, _ and -.")]
ColumnName = Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]{0,62}$")]
TableName = Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?$")]
Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,200}$", description="An environment variable.")]
Text = Annotated[str, Meta(min_length=1, max_length=2_000)]
JsonPath = Annotated[str, Meta(min_length=1, max_length=500, description="Such as $.items[*] or Address.Title.")]
Duration = Annotated[str, Meta(pattern=timestamps.PATTERN, description="Such as 90s, 15m, 1h30m or 7d.")]
Status = Annotated[str, Meta(pattern=r"^[2-5][0-9][0-9]$", description="An HTTP status, such as 404.")]
ReplyPlace = Annotated[str, Meta(min_length=1, max_length=500, description="A path, or header:NAME.")]
PageLimit = Annotated[int, Meta(ge=1, le=100_000)]
Count = Annotated[int, Meta(ge=1, le=10**12)]
Share = Annotated[float, Meta(ge=0, le=1)]
Reference = Annotated[str, Meta(pattern=r"^/[^#]*#.+$", description="A path of the source and where to look: /a#$.b")]
LIMIT_MIN = 50
HEADER = "header:"

Param = str | int | float | bool


class SpecPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a spec. Unknown fields are refused: a misspelt guard would guard nothing."""


class AuthSpec(SpecPart, frozen=True, kw_only=True):
    """How requests are authenticated: with a header, a parameter, a user name, or a token of OAuth2."""

    env: Variable | None = None
    """The environment variable with the secret."""
    file: Text | None = None
    """The file with the secret, instead of `env`."""
    header: Text | None = None
    param: Text | None = None
    scheme: Text | None = None
    """Precedes the secret, for example "Bearer"."""
    user: Text | None = None
    """The user name for Basic authentication; the secret is the password."""
    token_url: Text | None = None
    """Where OAuth2 client credentials, or a refresh token, are exchanged for a token; the secret is the client's."""
    client_id: Text | None = None
    scope: Text | None = None
    refresh_file: Text | None = None
    """With `token_url`: the JSON file with the refresh token. All workers share it, and replace the token in it."""
    refresh_env: Variable | None = None
    """With `token_url`: the environment variable with the first refresh token. The tokens that replace it are kept in
    the job store, encrypted, for the workers of all machines."""


class SourceSpec(SpecPart, frozen=True, kw_only=True):
    name: Name
    kind: Literal["json", "ocm"] = "json"
    """"ocm" uses the client for Open Charge Map; "json" is any other source."""
    base_url: Text | None = None
    file: Text | None = None
    """A file with JSON lines or CSV, instead of base_url."""
    format: Literal["jsonl", "csv"] | None = None
    auth: AuthSpec | None = None
    headers: dict[str, Text] = {}
    trusted: list[Text] = []
    """Other origins that links to the next page may lead to, such as "http://api.example". They receive the secret."""
    limits: list[str] = []
    """As the source states them, for example "50/second"."""
    limit_name: Name | None = None
    """Specs with the same name share one limit, for several resources of one API. None: the name of the source."""
    concurrency: Annotated[int, Meta(ge=1, le=1_000)] | None = None


class Stamp(SpecPart, frozen=True, kw_only=True):
    """When the source last changed a record."""

    field: JsonPath
    granularity: Duration = "1s"
    lag: Duration = "0s"
    """How long until a change becomes visible."""
    optional: bool = False
    """Whether records may lack a stamp."""
    format: Literal["auto", "iso", "epoch", "epoch_ms"] = "auto"

    @property
    def granularity_us(self) -> int:
        return timestamps.duration_us("granularity", self.granularity)

    @property
    def lag_us(self) -> int:
        return timestamps.duration_us("lag", self.lag)


class PagingSpec(SpecPart, frozen=True, kw_only=True, tag_field="cursor"):
    """Fields of all kinds of paging."""

    limit: PageLimit = 100
    limit_param: Text | None = None
    """The parameter for the page size. None: the source determines it."""
    limit_min: PageLimit | None = None
    """Pages that are too heavy are halved down to this size. None: 50."""
    fixed: dict[str, Param] = {}
    """Parameters that the paging needs, such as an order."""
    short_page_is_end: bool = False
    """Set only if the source promises it. Otherwise a short page is confirmed with another request."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def limit_least(self) -> int:
        return min(self.limit, LIMIT_MIN if self.limit_min is None else self.limit_min)


class KeysetPaging(PagingSpec, frozen=True, kw_only=True, tag="keyset"):
    """The records after a key, in the order of keys."""

    param: Text
    start: int | str | None = None
    is_inclusive: bool = False
    """Whether the source also returns the record with the key itself."""
    more: ReplyPlace | None = None
    """The path in a reply that says whether there are more records."""


class OffsetPaging(PagingSpec, frozen=True, kw_only=True, tag="offset"):
    """The records after a number of records."""

    param: Text = "offset"
    total: ReplyPlace | None = None
    """The path in a reply that says how many records there are."""


class PageNumberPaging(PagingSpec, frozen=True, kw_only=True, tag="page"):
    param: Text = "page"
    start: Annotated[int, Meta(ge=0, le=1)] = 1
    total: ReplyPlace | None = None
    pages: ReplyPlace | None = None
    """The path in a reply that says how many pages there are."""
    is_stable: bool = False
    """Set only if records never move between pages while they are read. Otherwise the run is at best unverified."""


class LinkPaging(PagingSpec, frozen=True, kw_only=True, tag="link"):
    """A reply contains the URL of the next page."""

    next: ReplyPlace | None = None
    """None: in the Link header."""


class TokenPaging(PagingSpec, frozen=True, kw_only=True, tag="token"):
    """A reply contains a token for the next page."""

    param: Text
    next: ReplyPlace
    more: ReplyPlace | None = None


class SinglePaging(PagingSpec, frozen=True, kw_only=True, tag="none"):
    """No pages: one reply contains everything, or was truncated."""


Paging = KeysetPaging | OffsetPaging | PageNumberPaging | LinkPaging | TokenPaging | SinglePaging


class Filter(SpecPart, frozen=True, kw_only=True):
    """How to request a part of the source: by values (`param`), by a range (`lower`, `upper`), or by a box (`param` and
    `box`).
    """

    param: Text | None = None
    lower: Text | None = None
    upper: Text | None = None
    interval: Text | None = None
    """With `param`: both bounds in one parameter, such as "{from}/{to}". An open bound is written as "..".
    """
    lower_is: Literal["inclusive", "exclusive"] = "inclusive"
    upper_is: Literal["inclusive", "exclusive"] = "exclusive"
    format: Literal["plain", "iso", "date", "epoch", "epoch_ms"] = "plain"
    """How instants are written."""
    path: JsonPath | None = None
    """The path of the value in a record. leaseway applies what the source does not, and notices when the source ignores
    a filter.
    """
    values: list[str | int] | None = None
    values_from: Reference | None = None
    separator: Annotated[str, Meta(min_length=1, max_length=5)] = ","
    rows: dict[str, Annotated[int, Meta(ge=0, le=10**12)]] = {}
    """Approximate rows per value. Small values share a shard."""
    rows_from: Reference | None = None
    """Where the source reports the rows per value: as many numbers as `values_from` has values, in the same order."""
    box: Literal["(south,west),(north,east)", "west,south,east,north", "south,west,north,east"] | None = None
    """How the four sides of a box are written."""
    latitude: JsonPath | None = None
    """The path of the latitude in a record. A point on an edge belongs to one box."""
    longitude: JsonPath | None = None
    is_geodesic: bool = False
    """Whether the source draws the edges of a box as great circles. Then a larger box is requested."""
    includes_world_edges: bool = False
    """Whether a box that ends at 180 or 90 degrees includes the points there, as `is_geodesic` implies. Otherwise the
    box reaches a little beyond."""


class Partition(SpecPart, frozen=True, kw_only=True, tag_field="by"):
    """How the source is divided into shards."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)


class Whole(Partition, frozen=True, kw_only=True, tag="none"):
    """One shard."""


class IdRange(Partition, frozen=True, kw_only=True, tag="id_range"):
    size: Count
    lower: int = 0
    upper: Annotated[int, Meta(ge=1)] | Reference | None = None
    """The largest id, or where the source reports it. The last shard has no upper end."""


class Windows(Partition, frozen=True, kw_only=True, tag="window"):
    start: Text
    step: Duration
    end: Text | None = None

    @property
    def step_us(self) -> int:
        return timestamps.duration_us("step", self.step)


class Country(Partition, frozen=True, kw_only=True, tag="country"):
    group_below: Annotated[int, Meta(ge=0)] = 0
    """Countries with fewer rows than this share a shard."""
    then: Windows | None = None
    """Divides each of them again, by time."""


class Boxes(Partition, frozen=True, kw_only=True, tag="box"):
    """A grid of bounding boxes. A box with more rows than the source returns is split in four."""

    area: tuple[float, float, float, float] = (-90.0, -180.0, 90.0, 180.0)
    """South, west, north, east. If west is larger than east, the area crosses the antimeridian."""
    degrees: Annotated[float, Meta(ge=0.01, le=90)] = 10.0
    then: Windows | None = None


class ColumnSpec(SpecPart, frozen=True, kw_only=True):
    path: JsonPath
    type: ColumnType


class QualityCheck(SpecPart, frozen=True, kw_only=True):
    """A condition on a field. A row that does not meet it is a bad row."""

    range: tuple[float, float] | None = None
    one_of: list[str | int | float | bool] | None = None
    not_null: bool = False


class OnBadRow(SpecPart, frozen=True, kw_only=True):
    policy: Literal["quarantine", "skip", "fail"] = "quarantine"
    max_ratio: Share = 0.01
    """A shard with a larger share of bad rows is parked."""


class GuardSettings(SpecPart, frozen=True, kw_only=True):
    pages_max: Count = 10_000
    """Per shard, like the next two fields."""
    rows_max: Count = 10_000_000
    bytes_max: Count = 100_000_000_000
    row_bytes_max: Count = 1_048_576
    """A larger document is a bad row."""
    yield_floor: Share = 0.5
    """A run with fewer rows than this share of the last complete run is suspect."""
    duplicate_ratio_max: Share = 0.05


class Incremental(SpecPart, frozen=True, kw_only=True):
    """Read only changes since the last complete run."""

    overlap: Duration
    """How far a run reads back before the last one: at least the source's lag plus its granularity."""
    filter: Name = "window"
    reconcile: Duration = "7d"
    """Time until the next full run, which also finds changes without a new stamp."""

    @property
    def reconcile_us(self) -> int:
        return timestamps.duration_us("reconcile", self.reconcile)

    @property
    def overlap_us(self) -> int:
        return timestamps.duration_us("overlap", self.overlap)


class DeletedMark(SpecPart, frozen=True, kw_only=True):
    """How a record of the source says that it is deleted."""

    field: JsonPath
    values: list[str | int | bool] | None = None
    """The values that mean deleted. None: any value but null, false, 0 and an empty text."""


class FlagFeed(SpecPart, frozen=True, kw_only=True):
    """Parameters with which the source returns deleted records."""

    params: dict[str, Param]


class ConfirmSettings(SpecPart, frozen=True, kw_only=True):
    """How to request records by id."""

    param: Text
    batch: Annotated[int, Meta(ge=1, le=1_000)] = 100
    separator: Annotated[str, Meta(min_length=1, max_length=5)] = ","


class SweepSettings(SpecPart, frozen=True, kw_only=True):
    """After a full run, find rows that it did not see."""

    confirm: ConfirmSettings | None = None
    after: Annotated[int, Meta(ge=1, le=10)] = 2
    """How many consecutive full runs must miss a record before it is marked as deleted."""
    max_ratio: Share = 0.02
    """With a larger share of absent rows, the run is suspect and nothing is deleted."""


class DeleteSettings(SpecPart, frozen=True, kw_only=True):
    record: DeletedMark | None = None
    """For sources that return deleted records together with the others. Their rows are kept and marked."""
    flag: FlagFeed | None = None
    sweep: SweepSettings | None = None


class RunBudget(SpecPart, frozen=True, kw_only=True):
    """The budget of one run. A used-up budget stops the run cleanly; resume it with a larger one."""

    requests: Count | None = None
    price: Annotated[float, Meta(gt=0)] | None = None
    """The price of one request."""
    money: Annotated[float, Meta(gt=0)] | None = None
    currency: Annotated[str, Meta(min_length=1, max_length=10)] = "USD"

    @property
    def requests_max(self) -> int | None:
        """The tighter of both limits, in requests."""
        by_money = None if self.money is None or self.price is None else int(self.money / self.price + 1e-9)
        return min((bound for bound in (self.requests, by_money) if bound is not None), default=None)


class Resource(SpecPart, frozen=True, kw_only=True):
    key: JsonPath
    path: str = ""
    """Relative to base_url."""
    method: Literal["GET", "POST"] = "GET"
    """With "POST", parameters whose names are paths, such as $.variables.after, go into the body."""
    body: dict[str, Any] = {}
    """The body of every POST, as JSON: for example the query of GraphQL."""
    params: dict[str, Param] = {}
    statuses: dict[Status, Literal["end", "retry", "smaller", "park", "fail"]] = {}
    """What a status means, where it is not the usual: the end of the source, try again, a smaller page, park the shard,
    or fail the run.
    """
    records: JsonPath = "$"
    stamp: Stamp | None = None
    volatile: list[JsonPath] = []
    """Fields that change without a real change. They are not part of the content hash."""
    page: Paging = SinglePaging()
    filters: dict[Name, Filter] = {}
    partition: Whole | IdRange | Country | Windows | Boxes = Whole()
    columns: dict[ColumnName, ColumnSpec] = {}
    quality: dict[JsonPath, QualityCheck] = {}
    on_bad_row: OnBadRow = OnBadRow()
    guards: GuardSettings = GuardSettings()
    incremental: Incremental | None = None
    deletes: DeleteSettings | None = None


class SinkSpec(SpecPart, frozen=True, kw_only=True):
    url: Text
    table: TableName
    """With its schema, in databases that have schemas."""


class Spec(SpecPart, frozen=True, kw_only=True):
    version: Literal[1]
    source: SourceSpec
    resource: Resource
    sink: SinkSpec
    budget: RunBudget | None = None
