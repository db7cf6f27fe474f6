"""leaseway import init: a first spec, guessed from one reply or from an OpenAPI document."""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from leaseway.cli.output.console import note
from leaseway.domain.errors import TransientError, UsageError
from leaseway.domain.http import HttpError
from leaseway.imports.domain.jsonpath import decode_body
from leaseway.imports.run.plan import UnlimitedRequests
from leaseway.imports.spec.guess_spec import ApiReply, guess_spec
from leaseway.imports.spec.openapi_sample import sample_reply
from leaseway.imports.spec.reader import read_spec
from leaseway.system import SystemChance, SystemClock
from leaseway.wiring import http_transport
from leaseway.worker.provider_http import Http, HttpEnvironment

BYTES_MAX = 50_000_000


class InitOptions(NamedTuple):
    """The options as typed."""

    place: str
    """A URL, or the file of an OpenAPI document."""
    path: str | None
    header: str | None
    env: str | None
    name: str | None


def make_spec(asked: InitOptions) -> str:
    try:
        reply = load_reply(asked)
        name = asked.name or name_for(reply.url)
        text = guess_spec(reply, name, auth_line(asked))
    except ValueError as error:
        raise UsageError(f"{asked.place}: {error}") from error
    read_spec(text, "guessed spec")  # an invalid guess must not reach a file
    note("check the lines with comments, then run: leaseway import plan SPEC")
    return text


def auth_line(asked: InitOptions) -> str:
    if asked.env is None:
        return ""
    return f"auth = {{ header = {json.dumps(header_of(asked))}, env = {json.dumps(asked.env)} }}"


def load_reply(asked: InitOptions) -> ApiReply:
    if asked.place.startswith(("http://", "https://")):
        body, headers = asyncio.run(fetch(asked))
        where = asked.place
    else:
        file = Path(asked.place)
        if not file.is_file():
            raise UsageError(f"{asked.place} is neither a URL nor a file")
        body, headers, where = decode_body(file.read_bytes()[:BYTES_MAX]), {}, "https://api.example/"
    if isinstance(body, dict) and ("openapi" in body or "swagger" in body):
        return sample_reply(body, asked.path, where)
    return ApiReply(where, body, headers)


async def fetch(asked: InitOptions) -> tuple[Any, dict[str, str]]:
    """One request."""
    transport = http_transport()
    try:
        http = Http(HttpEnvironment(transport, SystemClock(), SystemChance()), UnlimitedRequests(), lambda step: step)
        reply = await http.get(asked.place, headers={"Accept": "application/json", **secret_header(asked)})
    except (HttpError, OSError) as error:
        raise TransientError(f"{asked.place.partition('?')[0]} cannot be reached: {error}") from error
    finally:
        await transport.close()
    if reply.status_code != 200:
        hint = "; name the key with --header and --env" if reply.status_code in (401, 403) else ""
        raise UsageError(f"{asked.place.partition('?')[0]} answers {reply.status_code}{hint}")
    return decode_body(reply.content), {name.lower(): value for name, value in reply.headers.items()}


def header_of(asked: InitOptions) -> str:
    return asked.header or "X-API-Key"


def secret_header(asked: InitOptions) -> dict[str, str]:
    if asked.env is None:
        return {}
    secret = os.environ.get(asked.env, "").strip()
    if not secret:
        raise UsageError(f"--env: the environment variable {asked.env} is not set; it must contain the key")
    return {header_of(asked): secret}


def name_for(url: str) -> str:
    last = [part for part in urlsplit(url).path.split("/") if part] or [urlsplit(url).hostname or "source"]
    plain = re.sub(r"[^a-z0-9]+", "-", last[-1].lower()).strip("-")[:50]
    return plain if plain and plain[0].isalpha() else f"source-{plain}".rstrip("-")
