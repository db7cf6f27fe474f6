"""pygeoapi with a Parquet provider, whose boxes have strict bounds: python pygeoapi_things.py FOLDER PORT URL POINTS

POINTS is a file of [id, name, longitude, latitude].
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import geopandas
import yaml
from shapely import Point

FOLDER, PORT, URL, POINTS = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])


def settings() -> dict[str, object]:
    text = {"en": "things"}
    extents = {"spatial": {"bbox": [-180, -90, 180, 90], "crs": "http://www.opengis.net/def/crs/OGC/1.3/CRS84"}}
    provider = {
        "type": "feature",
        "name": "Parquet",
        "data": {"source": str(FOLDER / "things.parquet")},
        "id_field": "id",
        "x_field": "x",
        "y_field": "y",
    }
    collection = {
        "type": "collection",
        "title": text,
        "description": text,
        "keywords": {"en": ["things"]},
        "links": [],
        "extents": extents,
        "providers": [provider],
    }
    contact = {"name": "things", "url": "http://127.0.0.1"}
    return {
        "server": {
            "bind": {"host": "127.0.0.1", "port": PORT},
            "url": URL,
            "mimetype": "application/json; charset=UTF-8",
            "encoding": "utf-8",
            "languages": ["en-US"],
            "limits": {"default_items": 20, "max_items": 1_000},
            "map": {"url": "http://127.0.0.1/{z}/{x}/{y}", "attribution": "none"},
        },
        "logging": {"level": "ERROR"},
        "metadata": {
            "identification": {
                "title": text,
                "description": text,
                "keywords": {"en": ["things"]},
                "keywords_type": "theme",
                "terms_of_service": "none",
                "url": "http://127.0.0.1",
            },
            "license": {"name": "none", "url": "http://127.0.0.1"},
            "provider": contact,
            "contact": contact,
        },
        "resources": {"things": collection},
    }


points = json.loads(POINTS.read_text("utf-8"))
frame = geopandas.GeoDataFrame(
    {
        "id": [each[0] for each in points],
        "name": [each[1] for each in points],
        "x": [each[2] for each in points],
        "y": [each[3] for each in points],
    },
    geometry=[Point(each[2], each[3]) for each in points],
    crs="EPSG:4326",
)
frame.to_parquet(FOLDER / "things.parquet")
(FOLDER / "config.yml").write_text(yaml.safe_dump(settings()), "utf-8")
(FOLDER / "openapi.yml").write_text("openapi: 3.0.2\ninfo: {title: things, version: '1'}\npaths: {}\n", "utf-8")
os.environ |= {"PYGEOAPI_CONFIG": str(FOLDER / "config.yml"), "PYGEOAPI_OPENAPI": str(FOLDER / "openapi.yml")}

sys.modules["s3fs"] = ModuleType("s3fs")  # the provider imports it, and uses it for files in S3 only

from pygeoapi.flask_app import APP  # noqa: E402 - it reads the files when it is imported

APP.run(host="127.0.0.1", port=PORT)
