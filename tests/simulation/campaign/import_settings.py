"""What a seed decides about an import: the spec, the provider's table and behaviour, the sink's faults, the fleet."""

from collections.abc import Sequence
from random import Random

from msgspec import Struct
from msgspec.structs import replace
from tests.simulation.campaign.source_api import COUNTRIES, UNKNOWN_COUNTRY, Manners

from leaseway.imports.domain.run_state import RunMode
from leaseway.imports.spec.reader import Spec, read_spec
from leaseway.simulation.swarm import CALM, FaultRates, Streams, Swarm, draw
from leaseway.testing.fake_open_charge_map import Poi, synthetic

WORLDS = 4
"""One world in four is sluggish, one in four is restless; see below."""
FEW_PAGES = 3
"""The maximum size of a shard, in worlds in which shards are split."""

SPEC = """
version = 1
[source]
name = "ocm"
base_url = "http://api.example/v3"
auth = {{ header = "X-API-Key", env = "OCM_API_KEY" }}
limits = [{limits}]
[resource]
path = "/poi"
params = {{ compact = true, verbose = false }}
key = "ID"
stamp = {{ field = "DateLastStatusUpdate", granularity = "1m", lag = "{lag_ms}ms" }}
volatile = ["IsRecentlyVerified", "DateLastVerified"]
partition = {partition}
filters.country = {{ param = "countryid", path = "AddressInfo.CountryID", values = [{countries}] }}
filters.window = {{ lower = "modifiedsince", path = "DateLastStatusUpdate", format = "iso" }}
incremental = {{ overlap = "2m" }}
{deletes}
guards = {{ pages_max = {pages_max}, yield_floor = 0.0 }}
[resource.page]
cursor = "keyset"
param = "greaterthanid"
start = 0
limit_param = "maxresults"
limit = {limit}
limit_min = 2
fixed = {{ sortby = "id_asc" }}
[resource.columns]
title = {{ path = "AddressInfo.Title", type = "text" }}
[sink]
url = "sqlite:///rows.db"
table = "poi"
{budget}
"""


SWEEP = 'deletes.sweep = { confirm = { param = "chargepointid" }, after = 1, max_ratio = 1.0 }'
PARTITIONS = ("id_range", "id_range", "country", "country", "none")


class Terms(Struct, frozen=True, kw_only=True):
    spec: Spec
    pois: list[Poi]
    manners: Manners
    sink_faults: FaultRates
    resume_every: float
    """The operator resumes a run although nothing is wrong."""
    comes_again: RunMode | None
    """When the run is complete, a second one reads the changes since then, or everything, to find rows that are
    gone.
    """


def draw_terms(chance: Random, partitions: Sequence[str] = PARTITIONS) -> Terms:
    lag_seconds = chance.choice((0.0, 0.5, 1.5))
    partition = chance.choice(partitions)
    comes_again = chance.choice((None, None, RunMode.INCREMENTAL, RunMode.FULL))
    deletes = SWEEP if comes_again is RunMode.FULL else ""
    spec, manners = draw_spec(chance, partition, lag_seconds, deletes), draw_manners(chance, partition, lag_seconds)
    if spec.resource.guards.pages_max == FEW_PAGES:
        # Nothing beyond the largest id of the plan can be split: the upper bound would have to be raised.
        manners = replace(manners, inserts=0)
    return Terms(
        spec=spec,
        pois=draw_pois(chance),
        manners=manners,
        sink_faults=draw_sink_faults(chance),
        resume_every=maybe(chance, 0.3, 2.0, 5.0),
        comes_again=comes_again,
    )


def draw_spec(chance: Random, partition: str, lag_seconds: float, deletes: str) -> Spec:
    size, upper = chance.choice((40, 90, 1_000)), "/system/status#$.maxPOIId"
    countries = [*COUNTRIES, *([UNKNOWN_COUNTRY] if chance.random() < 0.15 else [])]
    partitions = {
        "id_range": f'{{ by = "id_range", size = {size}, upper = "{upper}" }}',
        "country": '{ by = "country" }',
        "none": '{ by = "none" }',
    }
    text = SPEC.format(
        limits=chance.choice(("", f'"{chance.randint(4, 12)}/second"', '"12 per 2 s"')),
        lag_ms=int(lag_seconds * 1_000),
        partition=partitions[partition],
        countries=", ".join(map(str, countries)),
        pages_max=chance.choice((FEW_PAGES, 10_000, 10_000)),
        limit=chance.choice((3, 5, 10)),
        deletes=deletes,
        budget=chance.choice(("", "", f"[budget]\nrequests = {chance.randint(20, 40)}")),
    )
    return read_spec(text, "simulated.toml")


def draw_pois(chance: Random) -> list[Poi]:
    found = synthetic(chance.randint(40, 120), seed=chance.randint(1, 1_000), hidden_every=chance.choice((0, 9)))
    return [replace(poi, country=chance.choice(COUNTRIES)) for poi in found]


def draw_manners(chance: Random, partition: str, lag_seconds: float) -> Manners:
    roughness = chance.choice((0.0, 1.0, 1.0, 2.0))

    def share(of_worlds: float, least: float, most: float) -> float:
        return maybe(chance, of_worlds, least, most) * roughness

    return Manners(
        errors=share(0.4, 0.02, 0.1),
        refuses=share(0.3, 0.01, 0.05),
        empties=share(0.7, 0.05, 0.2),
        html=share(0.3, 0.02, 0.1),
        cut=share(0.3, 0.02, 0.1),
        halved=share(0.3, 0.02, 0.1),
        silent=share(0.3, 0.01, 0.05),
        unreachable=share(0.3, 0.01, 0.05),
        reordered_every=maybe(chance, 0.4, 1.5, 4.0),
        unfiltered_every=maybe(chance, 0.5, 1.5, 4.0) if partition == "country" else 0.0,
        absent_every=maybe(chance, 0.4, 0.5, 2.0),
        changes_every=maybe(chance, 0.7, 0.3, 2.0),
        inserts=chance.choice((0, 3)),
        revoked_every=maybe(chance, 0.4, 2.0, 8.0),
        lag_seconds=lag_seconds,
    )


def draw_sink_faults(chance: Random) -> FaultRates:
    roughness = chance.choice((0.0, 0.5, 1.0))
    return FaultRates(
        latency_seconds=chance.choice((0.001, 0.01, 0.04)),
        stall=maybe(chance, 0.5, 0.01, 0.05) * roughness,
        busy=maybe(chance, 0.5, 0.02, 0.1) * roughness,
        full=maybe(chance, 0.5, 0.05, 0.3) * roughness,
        request_lost=maybe(chance, 0.5, 0.02, 0.1) * roughness,
        reply_lost=maybe(chance, 0.7, 0.05, 0.3) * roughness,
    )


def maybe(chance: Random, share: float, least: float, most: float) -> float:
    """The share of worlds that have this fault."""
    value = chance.uniform(least, most)
    return value if chance.random() < share else 0.0


# -- worlds ----------------------------------------------------------------------------------------------------------


def draw_world(seed: int) -> tuple[Terms, Swarm]:
    chance, swarm = Streams(seed).of("imports"), draw_swarm(seed)
    match seed % WORLDS:
        case 0:
            return sluggish(draw_terms(chance), swarm)
        case 2:
            return restless(draw_terms(chance, ["country"]), swarm)
    return draw_terms(chance), swarm


def draw_swarm(seed: int) -> Swarm:
    swarm = draw(seed)
    # The link to the job store has its own scenario: if it is too bad here, no page is ever fetched.
    faults = swarm.faults if seed % 2 else FaultRates(latency_seconds=swarm.faults.latency_seconds)
    return replace(swarm, faults=faults, clients=1, step_every=0.0, replay_every=0.0, cancel=0.0)


def sluggish(terms: Terms, swarm: Swarm) -> tuple[Terms, Swarm]:
    """Pages take long to reach the sink, and their workers die meanwhile: other workers are faster."""
    faults = FaultRates(stall=0.15, reply_lost=0.3, latency_seconds=0.04)
    return (
        replace(terms, sink_faults=faults),
        replace(
            swarm, faults=CALM, workers=4, concurrency=3, crash_every=1.5, pause_every=1.0, pause_seconds=(2.0, 6.0)
        ),
    )


def restless(terms: Terms, swarm: Swarm) -> tuple[Terms, Swarm]:
    """Rows move from one shard to another while both are read, and pages take long to reach the sink."""
    manners = Manners(changes_every=0.15, moves=10, lag_seconds=terms.manners.lag_seconds)
    faults = FaultRates(stall=0.2, latency_seconds=0.01)
    return replace(terms, manners=manners, sink_faults=faults), replace(swarm, workers=3, concurrency=4)
