"""Versioned resources: ETag, If-Match and If-None-Match."""

import asyncio
import re

from fastapi import Request

from leaseway.api.errors import Problem

VERSION = re.compile(r'(?:W/)?"(\d{1,18})"')
PRECONDITION_HEADERS = (
    ("If-Match", "The ETag of a response. 412 if the resource has changed since."),
    ("If-None-Match", "`*`: create only. 412 if the resource exists."),
)
PRECONDITION_PROBLEMS = (400, 412)


def etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def check_version(request: Request, what: str, version: int | None) -> None:
    """Compare If-Match and If-None-Match with the present version. None: the resource does not exist."""
    wanted, unwanted = request.headers.get("if-match"), request.headers.get("if-none-match")
    if unwanted is not None:
        if unwanted.strip() != "*":
            raise Problem(400, "bad_precondition", "If-None-Match: only * is supported")
        if version is not None:
            raise stale(what, "already exists", version)
    if wanted is None or (wanted.strip() == "*" and version is not None):
        return
    if version is None:
        raise stale(what, "does not exist", None)
    if version not in parse_versions(wanted):
        raise stale(what, f"is at version {version}, not at the version in If-Match; read it again", version)


def parse_versions(text: str) -> list[int]:
    found = [VERSION.fullmatch(each.strip()) for each in text[:1_000].split(",")]
    if not all(found):
        raise Problem(400, "bad_precondition", 'If-Match: must be the ETag of a response, such as "7"')
    return [int(each[1]) for each in found if each is not None]


def stale(what: str, why: str, version: int | None) -> Problem:
    return Problem(412, "stale", f"{what} {why}", extra={"version": version})


def change_lock(request: Request) -> asyncio.Lock:
    """One change at a time in this process, for writes that no version protects. Other processes are not excluded."""
    state = request.app.state
    if not hasattr(state, "change_lock"):
        state.change_lock = asyncio.Lock()
    lock: asyncio.Lock = state.change_lock
    return lock
