"""The reference data that an import needs: `/v3/referencedata`."""

from functools import cache
from importlib import resources
from typing import Any

TITLES: dict[str, dict[int, str]] = {
    "ChargerTypes": {1: "Level 1: low", 2: "Level 2: medium", 3: "Level 3: high"},
    "ConnectionTypes": {1: "Type 1 (J1772)", 2: "CHAdeMO", 25: "Type 2 (Socket Only)", 33: "CCS (Type 2)"},
    "CurrentTypes": {10: "AC (Single-Phase)", 20: "AC (Three-Phase)", 30: "DC"},
    "DataProviders": {1: "Open Charge Map Contributors"},
    "Operators": {1: "(Unknown Operator)"},
    "StatusTypes": {
        0: "Unknown",
        30: "Temporarily Unavailable",
        50: "Operational",
        75: "Partly Operational (Mixed)",
        100: "Not Operational",
        150: "Planned For Future Date",
        200: "Removed (Decommissioned)",
        210: "Removed (Duplicate Listing)",
    },
    "SubmissionStatusTypes": {
        1: "Submission Under Review",
        50: "Imported and Under Review",
        100: "Imported and Published",
        200: "Submission Published",
        250: "Submission Rejected - Incomplete",
        1000: "Delisted",
        1001: "Delisted - Duplicate",
        1002: "Delisted - No Longer Active/Decommissioned",
        1005: "Delisted - Superseded by Update",
        1010: "Delisted - Not Public Information/Is Private Residence",
        1020: "Delisted - Removed by Import Data Provider",
    },
    "UsageTypes": {0: "(Unknown)", 1: "Public", 4: "Public - Membership Required", 5: "Public - Pay At Location"},
}


def countries() -> list[dict[str, Any]]:
    text = resources.files(__package__).joinpath("countries.tsv").read_text(encoding="utf-8")
    return [country(*line.split("\t")) for line in text.splitlines()]


def country(number: str, code: str, continent: str, title: str) -> dict[str, Any]:
    return {"ISOCode": code, "ContinentCode": continent or None, "ID": int(number), "Title": title}


COUNTRY_BY_ID = {country["ID"]: country for country in countries()}
ID_BY_CODE: dict[str, int] = {country["ISOCode"]: country["ID"] for country in COUNTRY_BY_ID.values()}


def titled(table: str, number: int) -> dict[str, Any] | None:
    title = TITLES[table].get(number)
    return None if title is None else {"ID": number, "Title": title}


@cache
def reference() -> dict[str, Any]:
    lists = {
        table: [{"ID": number, "Title": title} for number, title in titles.items()] for table, titles in TITLES.items()
    }
    return {**lists, "Countries": list(COUNTRY_BY_ID.values())}
